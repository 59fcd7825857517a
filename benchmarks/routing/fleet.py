"""Generated traces of agent fleets.

Owns two kinds of fleet, after operators' reports: a prefix of 12k tokens of system text and tools
that all share, sessions of 10 to 40 turns that grow by 0.5k to 4k tokens a turn, tool pauses of 0.1
to 60 s, about 28 prompt tokens per answer token, 90 to 96 % of the prompt tokens cached on one
worker with memory for all. Must not know policies.

- agents: every session has the fleet's prefix and no relation to others.
- forks: sessions also fork two or three subagents at a time, which share a smaller prefix of their
  own; the parent waits for them.

Sessions start at random over one unit of time; the simulation scales that to the load. Pauses and
turns keep their own time. An answer is not found again in the next prompt, because agents send it
back without its reasoning.
"""

import math
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from benchmarks.routing.trace import DigestChains, RoutingTrace, TracedTurn

BLOCK: Final = 512
KINDS: Final = {"agents": 36, "forks": 20}
"""Sessions per worker in a table: each lasts about ten minutes, and sessions must keep starting for
much longer, or the load is never reached.
"""

_FLEET_PREFIX_TOKENS: Final = 12_288
_SUBAGENT_PREFIX_TOKENS: Final = 6_144
_FIRST_TOKENS: Final = (300, 3_000)
_GROWTH_TOKENS: Final = (500, 4_000)
_PAUSE_S: Final = (0.1, 60.0)
_TURNS: Final = (10, 40)
_SUBAGENT_TURNS: Final = (10, 16)
_FORK_SHARE: Final = 0.03
_PROMPT_PER_ANSWER: Final = 28


@dataclass(slots=True)
class _Plan:
    """The turns of a fleet under construction; numbers are indexes of `turns`."""

    chance: Random
    turns: list[TracedTurn] = field(default_factory=list)
    chains: DigestChains = field(default_factory=DigestChains)
    num_ids: int = 0

    def fresh(self, num_blocks: int) -> list[int]:
        """Ids that no prompt had before."""
        first, self.num_ids = self.num_ids, self.num_ids + num_blocks
        return list(range(first, first + num_blocks))


@dataclass(slots=True)
class _Session:
    """One conversation. `ids` name the blocks that its text fills so far."""

    name: str
    starts_at: float
    ids: list[int]
    num_tokens: int
    after: tuple[int, ...] = ()


def fleet_trace(kind: str, num_sessions: int, seed: int) -> RoutingTrace:
    """A fleet of `num_sessions` sessions, not counting subagents."""
    plan = _Plan(Random(f"{kind}/{num_sessions}/{seed}"))
    shared = plan.fresh(_FLEET_PREFIX_TOKENS // BLOCK)
    subagents = plan.fresh(_SUBAGENT_PREFIX_TOKENS // BLOCK)
    for number in range(num_sessions):
        session = _Session(
            f"{kind}-{number}", plan.chance.random(), list(shared), _FLEET_PREFIX_TOKENS
        )
        _live(plan, session, _TURNS, subagents if kind == "forks" else None)
    return RoutingTrace(f"fleet_{kind}", BLOCK, in_order(plan.turns))


def _live(
    plan: _Plan, session: _Session, num_turns: tuple[int, int], subagents: list[int] | None
) -> None:
    """All turns of a session and of its subagents."""
    chance = plan.chance
    _grow(plan, session, _log_uniform(chance, _FIRST_TOKENS))
    for turn in range(chance.randint(*num_turns)):
        number = _ask(plan, session, first=turn == 0)
        session.after = (number,)
        _grow(plan, session, _log_uniform(chance, _GROWTH_TOKENS))
        if subagents is not None and chance.random() < _FORK_SHARE:
            session.after = _fork(plan, session, number, subagents)


def _fork(plan: _Plan, parent: _Session, number: int, subagents: list[int]) -> tuple[int, ...]:
    """Start two or three subagents after a turn. Returns their last turns."""
    ends: list[int] = []
    for child in range(plan.chance.randint(2, 3)):
        session = _Session(
            f"{parent.name}.{number}.{child}",
            parent.starts_at,
            list(subagents),
            _SUBAGENT_PREFIX_TOKENS,
            (number,),
        )
        _live(plan, session, _SUBAGENT_TURNS, None)
        ends += session.after
    return tuple(ends)


def _ask(plan: _Plan, session: _Session, *, first: bool) -> int:
    """Add a turn with all the text so far. Returns its number."""
    number = len(plan.turns)
    chance = plan.chance
    pause_s = 0.0 if first else math.exp(chance.uniform(*map(math.log, _PAUSE_S)))
    answer = session.num_tokens / _PROMPT_PER_ANSWER * chance.uniform(0.5, 1.5)
    plan.turns.append(
        TracedTurn(
            number=number,
            session=session.name,
            arrival_s=session.starts_at,
            prompt_tokens=session.num_tokens,
            output_tokens=max(16, int(answer)),
            digests=plan.chains.digests(session.ids),
            after=session.after,
            pause_s=pause_s,
        )
    )
    return number


def _grow(plan: _Plan, session: _Session, num_tokens: int) -> None:
    """Add text: an answer with the tool's result, or the first question."""
    session.num_tokens += num_tokens
    num_new = session.num_tokens // BLOCK - len(session.ids)
    session.ids += plan.fresh(num_new)


def _log_uniform(chance: Random, bounds: tuple[int, int]) -> int:
    return int(math.exp(chance.uniform(*map(math.log, bounds))))


def in_order(turns: list[TracedTurn]) -> tuple[TracedTurn, ...]:
    """Order by the start of sessions and renumber, also in `after`."""
    order = sorted(turns, key=lambda turn: (turn.arrival_s, turn.number))
    place = {turn.number: new for new, turn in enumerate(order)}
    return tuple(
        replace(turn, number=new, after=tuple(place[before] for before in turn.after))
        for new, turn in enumerate(order)
    )
