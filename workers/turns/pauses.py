"""The pauses of a model between its work, and so whether it is in use while it has none.

Owns their counts by length, which of them count, and the share that ends soon. Must not know what
is decided by it. Old pauses count less with each new one, so that the counts follow a change of
use.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Literal, final

MemberState = Literal["awake", "waking", "falling asleep", "asleep", "away"]
"""The state of a worker. `away`: it has no engine and none is coming, so it holds no memory."""

EDGES_S: Final = (*[2.0**power for power in range(-5, 11)], inf)
"""The longest pause of each count: 31 ms, twice as long each, 17 minutes, and all longer ones."""
_KEPT: Final = 0.9
"""The factor by which older pauses count less with each new one."""

_SAME_S: Final = 1e-6
"""Rounding of times that are sums stays below this."""


@dataclass
class _Watched:
    """A model. `rested_at`: when its last work ended, None while it has some or had none yet.
    `stayed`: it has been awake since. `is_last`: no other model has ended work since. `is_early`:
    work was sent to its engine, and no gateway has reported any yet.
    """

    counts: tuple[float, ...] = ()
    has_work: bool = False
    uses: int = 0
    is_early: bool = False
    rested_at: float | None = None
    stayed: bool = True
    is_last: bool = True


@final
class PauseWatch:
    """The pauses of the models of one device, by name.

    A client that asks two models in turns asks the first again after the second has answered,
    however long that took. So a pause in which a model lost its place, and in which another one was
    served, says nothing of when work comes to it by itself, and does not count.

    Gateways say some tenths of a second late that a model has work, or never if it was soon done.
    The supervisor knows at once that something was sent to the engine: `uses` counts it.
    """

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}

    def counts(self, name: str) -> tuple[float, ...]:
        """The counts of its pauses, by length."""
        found = self._watched.get(name)
        return () if found is None else found.counts

    def see(self, name: str, state: MemberState, *, has_work: bool, uses: int, now: float) -> None:
        """Take the state of a model at `now`; call it whenever the state may have changed."""
        one = self._watched.setdefault(name, _Watched())
        is_awake, is_used = state == "awake", uses != one.uses
        one.stayed, one.is_early = one.stayed and is_awake, one.is_early and is_awake
        if not one.has_work and (is_used or (has_work and not one.is_early)):
            if one.rested_at is not None and (one.stayed or one.is_last):
                one.counts = with_pause(one.counts, now - one.rested_at)
            one.rested_at = None
        if one.has_work != has_work or (is_used and not has_work):
            one.is_early = is_used and not has_work
            # What ends elsewhere was not served: its client has left, or is to come again.
            if not has_work and state in ("awake", "falling asleep"):
                one.rested_at, one.stayed, one.is_last = now, is_awake, True
                for other in self._watched.values():
                    other.is_last = other.is_last and other is one
        one.has_work, one.uses = has_work, uses

    def forget(self, name: str) -> None:
        """Forget a model that is gone."""
        self._watched.pop(name, None)


def with_pause(counts: Sequence[float], pause_s: float) -> tuple[float, ...]:
    """The counts with one more pause."""
    kept = [_KEPT * count for count in counts or (0.0,) * len(EDGES_S)]
    kept[bisect_left(EDGES_S, pause_s)] += 1.0
    return tuple(kept)


def share_ending(counts: Sequence[float], after_s: float, within_s: float) -> float:
    """The share of the pauses as long as `after_s` that ended within `within_s` more; 0 without
    such a pause. Pauses of one count may have had any length of it.
    """
    longer = soon = shortest_s = 0.0
    for count, longest_s in zip(counts, EDGES_S, strict=False):
        if longest_s > after_s:
            longer += count
            soon += count if shortest_s < after_s + within_s else 0.0
        shortest_s = longest_s
    return soon / longer if longer else 0.0


def shares_after(
    counts: Sequence[float], after_s: float, within_s: float
) -> Iterator[tuple[float, float]]:
    """The share of `share_ending` from `after_s` on: until which length of the pause it holds, and
    what it is. The last one holds for ever.
    """
    edges = {at for edge in EDGES_S for at in (edge, edge - within_s)}
    begin_s = after_s
    for end_s in sorted(at for at in edges if at > after_s + _SAME_S):
        within_these = begin_s + 1.0 if end_s == inf else (begin_s + end_s) / 2
        yield end_s, share_ending(counts, within_these, within_s)
        begin_s = end_s
