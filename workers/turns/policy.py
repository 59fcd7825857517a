"""Which workers of a card are resident, and when one falls asleep for another.

Owns the decision: work that waits against work that would be delayed, in seconds of requests, with
the times to sleep and to wake that were measured on this host. Must not know processes, sockets or
clocks: times are arguments, in seconds.

A worker that sleeps and has waiting requests takes the place of others by four rules.

- Memory: it wakes at once if the card has room for it. Otherwise workers without work give way
  first, those longest without work before the others, and no more of them than are needed.
- Gate: work that came before its own is finished first, so that two bursts change places once.
- Cost: the seconds that its requests have waited reach the seconds that the change costs the
  others. This is the ski-rental rule: whatever comes next, the wait and the change together cost
  at most twice as much as the best decision in hindsight. One without work is in use if its
  earlier pauses say that work is about to come (`pauses.py`); else the change costs it nothing that
  a later one would not cost it as well.
- Patience: after `MAX_PATIENCE_ROUNDS` rounds (all times to sleep and to wake of a change and its
  return), at least `MIN_PATIENCE_S`, gate and cost count no more. So no worker waits for ever.

A worker that has just woken keeps its place for one round while it is in use. One change is under
way at a time, because memory is measured between changes. Workers without work fall asleep for an
always resident one that starts and has no room.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, final

import msgspec

from housekeeping.sizes import bytes_text
from protocol.messages import Count
from workers.turns.pauses import MemberState, shares_after

MAX_PATIENCE_ROUNDS: Final = 5.0
"""Under a constant overload of two models the changes then take at most a fifth of the time."""
MIN_PATIENCE_S: Final = 20.0
RETRY_S: Final = 5.0
"""After a wake that failed, or for which the memory was missing, the next try."""

_ROUNDING_S: Final = 1e-6
"""A time that is computed again from other sums may be later by rounding."""

_IN_USE: Final = 0.5
"""A worker without work is in use if so large a share of its pauses would end soon."""

PRIOR_WAKE_S: Final = 30.0
PRIOR_SLEEP_S: Final = 5.0
"""Used until a time is measured: the start of an engine and its end."""

Change = Literal["wake", "sleep"]

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Instant = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
PauseCounts = Annotated[
    tuple[Annotated[float, msgspec.Meta(ge=0, le=1e3)], ...], msgspec.Meta(max_length=64)
]


class Member(msgspec.Struct, frozen=True):
    """A worker of the card, by a `name` that no other one has.

    `awake_bytes` of the card it holds awake, `asleep_bytes` asleep, as measured; None: it was never
    awake. `waiting` and `running` count the sequences of all gateways, `waited_s` is the sum of
    the seconds that the waiting ones have waited. `oldest_at` is when the oldest unfinished one
    came. `since` is when the state began, `idle_since` when its last work ended. `wish` is what
    an operator asks for. `must_wait_until`: its last change failed. `order` is the number of the
    last order that it has taken. `uses` counts how often work was sent to its engine. `pauses` are
    counts of its pauses between work, by length, which the one that decides fills in.
    """

    name: str
    state: MemberState
    is_always: bool = False
    awake_bytes: Count | None = None
    asleep_bytes: Count = 0
    wake_s: Seconds | None = None
    sleep_s: Seconds | None = None
    waiting: Count = 0
    running: Count = 0
    waited_s: Seconds = 0.0
    oldest_at: Instant | None = None
    since: Instant = 0.0
    idle_since: Instant = 0.0
    idle_s: Seconds | None = None
    wish: Change | None = None
    must_wait_until: Instant = float("-inf")
    wants_look: bool = False
    order: Count = 0
    uses: Count = 0
    pauses: PauseCounts = ()

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def held_bytes(self) -> int:
        """The bytes of the card that it holds now, or keeps for itself: an always resident worker
        comes back to its place after a restart.
        """
        if self.state == "asleep":
            return self.asleep_bytes
        if self.state == "away" and not self.is_always:
            return 0
        return self.awake_bytes or 0

    @property
    def need_bytes(self) -> int | None:
        """The bytes that its wake takes; None if unknown."""
        return None if self.awake_bytes is None else max(0, self.awake_bytes - self.asleep_bytes)

    @property
    def waits_since(self) -> float:
        """Since when its work waits for its wake. Before, it had its turn."""
        return self.since if self.oldest_at is None else max(self.oldest_at, self.since)

    def rent_s(self, now: float) -> float:
        """The seconds that its requests have waited for its wake, summed."""
        return min(self.waited_s, self.waiting * max(0.0, now - self.since))


@dataclass(frozen=True, slots=True)
class SharedCard:
    """The card: all of its memory in bytes, None if it cannot be read, and what processes hold that
    are no members.
    """

    total_bytes: int | None = None
    other_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """What is to begin now: workers that fall asleep or wake. `due_s` is the forecast, for each
    that sleeps and is wanted, of the seconds until it serves. `why` says what keeps one from
    waking. The next decision is due at `next_at` if nothing happens before.
    """

    sleep: tuple[str, ...] = ()
    wake: tuple[str, ...] = ()
    due_s: dict[str, float] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    next_at: float | None = None


@final
class TurnPolicy:
    """Decides for one card. Its only state is `promised`: the worker for which others fall asleep,
    so that the room which they leave is not taken by another.
    """

    def __init__(self) -> None:
        self.promised: str | None = None

    def decide(self, members: Sequence[Member], card: SharedCard, now: float) -> TurnPlan:
        """The plan at `now`. Call it after every change and at `next_at`."""
        wanted = sorted(_wanted(members, now), key=self._order)
        if self.promised is not None and all(one.name != self.promised for one in wanted):
            self.promised = None
        due_s = self._due_s(wanted, members, now)
        gone = _in_the_way(members, card, now)
        if gone or any(_is_changing(one) for one in members):
            return TurnPlan(gone, due_s=due_s)
        later: list[float] = [
            one.must_wait_until for one in members if now < one.must_wait_until and _is_asked(one)
        ]
        why: dict[str, str] = {}
        is_first = True  # only the first in line for which there is a way takes others' places
        for one in wanted:
            victims = _victims(one, members, card)
            if victims is None:
                why[one.name] = _no_room(one, members, card)
                later.append(now + RETRY_S)
            elif not victims:
                self.promised = one.name
                return TurnPlan((), (one.name,), due_s, why)
            elif one.waiting == 0 and one.wish is None:
                pass  # a first start for measuring takes no other worker's place
            elif is_first:
                is_first = False
                at = max(self._takes_at(one, victim, now) for victim in victims)
                if at <= now + _ROUNDING_S:
                    self.promised = one.name
                    return TurnPlan(tuple(v.name for v in victims), (), due_s, why)
                later.append(at)
        rest = tuple(one.name for one in members if _may_rest(one, now))
        later += [
            max(one.idle_since + one.idle_s, one.must_wait_until)
            for one in members
            if one.idle_s is not None and _is_idle(one) and one.name not in rest
        ]
        return TurnPlan(rest, (), due_s, why, min(later, default=None))

    def _order(self, one: Member) -> tuple[bool, bool, float, str]:
        """First the promised one, then wishes of operators, then by the age of the wait."""
        is_look = one.waiting == 0 and one.wish is None
        since = float("-inf") if one.wish == "wake" else one.waits_since
        return one.name != self.promised, is_look, since, one.name

    def _takes_at(self, one: Member, victim: Member, now: float) -> float:
        """When `one` may take the place of `victim`, if the work of both stays as it is."""
        if now < victim.must_wait_until:
            return victim.must_wait_until
        if one.wish == "wake" or victim.wish == "sleep":
            return now
        forced_at = one.waits_since + _patience_s(one, victim)
        round_s = _round_s(one, victim)
        if not victim.has_work:
            return min(forced_at, _bought_at(one, victim, now))
        kept_until = victim.since + round_s
        if victim.oldest_at is not None and victim.oldest_at <= one.waits_since:
            return max(kept_until, forced_at)
        cost_s = round_s * (victim.waiting + victim.running)
        missing_s = max(0.0, cost_s - one.rent_s(now))
        return max(kept_until, min(forced_at, now + missing_s / max(1, one.waiting)))

    def _due_s(
        self, wanted: Sequence[Member], members: Sequence[Member], now: float
    ) -> dict[str, float]:
        """The forecasts: each waits for those ahead of it in line, and for its own change."""
        due_s: dict[str, float] = {}
        ahead_s = max((_left_s(one, now) for one in members if _is_changing(one)), default=0.0)
        for one in members:
            if one.state == "waking" and one.has_work:
                due_s[one.name] = _left_s(one, now)
        awake = [one for one in members if one.state == "awake" and not one.is_always]
        for one in wanted:
            if one.waiting or one.wish is not None:
                ahead_s += _wake_s(one) + max((_sleep_s(victim) for victim in awake), default=0.0)
                due_s[one.name] = ahead_s
        return due_s


def _wanted(members: Iterable[Member], now: float) -> Iterator[Member]:
    """The workers that sleep and should wake: requests wait, an operator asks for it, or nothing is
    known of it yet.
    """
    for one in members:
        is_able = one.state == "asleep" and now >= one.must_wait_until and one.wish != "sleep"
        if is_able and (one.waiting or one.wish == "wake" or one.wants_look):
            yield one


def _is_asked(one: Member) -> bool:
    """Whether something is asked of the worker that its pause puts off."""
    return one.has_work or one.wish is not None or one.wants_look


def _is_changing(one: Member) -> bool:
    """Whether the worker's memory changes now. An always resident worker that was measured has its
    place even while it restarts.
    """
    if one.state not in ("waking", "falling asleep"):
        return False
    return not one.is_always or one.awake_bytes is None


def _in_the_way(members: Sequence[Member], card: SharedCard, now: float) -> tuple[str, ...]:
    """The workers without work that give way to an always resident one that starts: it waits for no
    turn, and would not find its memory, or too little of it for good. All, if it was never
    measured.
    """
    starts = [one for one in members if one.is_always and one.state == "waking"]
    idle = [one for one in members if _is_idle(one) and now >= one.must_wait_until]
    if any(one.awake_bytes is None for one in starts):
        return tuple([one.name for one in idle])
    free = _free_bytes(members, card)
    chosen: list[str] = []
    for one in sorted(idle, key=_used) if starts else ():
        if free is None or free >= 0:
            break
        chosen.append(one.name)
        free += _freed(one)
    return tuple(chosen)


def _is_idle(one: Member) -> bool:
    return one.state == "awake" and not one.is_always and not one.has_work


def _may_rest(one: Member, now: float) -> bool:
    """Whether the worker falls asleep although no other needs its place: an operator asks for it,
    or it was idle for long.
    """
    if one.state != "awake" or one.is_always or now < one.must_wait_until:
        return False
    if one.wish == "sleep":
        return True
    return _is_idle(one) and one.idle_s is not None and now >= one.idle_since + one.idle_s


def _free_bytes(members: Iterable[Member], card: SharedCard) -> int | None:
    if card.total_bytes is None:
        return None
    return card.total_bytes - card.other_bytes - sum(one.held_bytes for one in members)


def _victims(one: Member, members: Sequence[Member], card: SharedCard) -> tuple[Member, ...] | None:
    """The workers that must fall asleep for `one`; None if even all of them are not enough.

    What is not measured shares the card with no worker that takes turns: an engine may take all
    memory that it finds.
    """
    awake = [other for other in members if other.state == "awake" and not other.is_always]
    free, need = _free_bytes(members, card), one.need_bytes
    if free is None or need is None or any(other.awake_bytes is None for other in awake):
        return tuple(awake)
    by_use = sorted(awake, key=lambda other: (other.has_work, other.wish != "sleep", _used(other)))
    chosen: list[Member] = []
    for other in by_use:
        if free >= need:
            break
        chosen.append(other)
        free += _freed(other)
    if free < need:
        return None
    for other in tuple(reversed(chosen)):  # with the last victims, earlier ones may not be needed
        if free - _freed(other) >= need:
            chosen.remove(other)
            free -= _freed(other)
    return tuple(chosen)


def _used(one: Member) -> float:
    return one.idle_since if not one.has_work else -float(one.waiting + one.running)


def _freed(one: Member) -> int:
    return max(0, (one.awake_bytes or 0) - one.asleep_bytes)


def _no_room(one: Member, members: Sequence[Member], card: SharedCard) -> str:
    total, need = card.total_bytes or 0, one.awake_bytes or 0
    kept = sum(other.held_bytes for other in members if other.is_always)
    parts = [f"it needs {bytes_text(need)} of {bytes_text(total)}"]
    if card.other_bytes:
        parts.append(f"other processes hold {bytes_text(card.other_bytes)}")
    if kept:
        parts.append(f"always resident models hold {bytes_text(kept)}")
    return "; ".join(parts)


def _wake_s(one: Member) -> float:
    return PRIOR_WAKE_S if one.wake_s is None else one.wake_s


def _sleep_s(one: Member) -> float:
    return PRIOR_SLEEP_S if one.sleep_s is None else one.sleep_s


def _bought_at(one: Member, victim: Member, now: float) -> float:
    """When the wait of `one` has reached what the change costs `victim`, which has no work: its
    return, times the share of its pauses that end before the return would cost as much as to wait
    for its work.
    """
    return_s = _sleep_s(one) + _wake_s(victim)
    rented_s, at = one.rent_s(now), now
    for paused_s, share in shares_after(victim.pauses, now - victim.idle_since, return_s):
        missing_s = max(0.0, return_s * share - rented_s)
        kept_until = victim.since + _round_s(one, victim) if share >= _IN_USE else at
        bought_at = max(at, kept_until, now + missing_s / max(1, one.waiting))
        if bought_at < victim.idle_since + paused_s:
            break
        at = victim.idle_since + paused_s
    return bought_at


def _patience_s(one: Member, victim: Member) -> float:
    """How long `one` waits at most until `victim` takes no more work."""
    return max(MIN_PATIENCE_S, MAX_PATIENCE_ROUNDS * _round_s(one, victim))


def _round_s(one: Member, other: Member) -> float:
    """The seconds of a change and of its return."""
    return max(1e-3, _wake_s(one) + _sleep_s(one) + _wake_s(other) + _sleep_s(other))


def _left_s(one: Member, now: float) -> float:
    whole = _wake_s(one) if one.state == "waking" else _sleep_s(one)
    return max(0.0, one.since + whole - now)
