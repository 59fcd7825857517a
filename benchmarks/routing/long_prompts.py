"""Generated traces of long prompts that are mostly not cached.

Owns four kinds in two groups. Must not know policies.

- documents: conversations about documents of 8k to 120k tokens with a heavy tail (Pareto, exponent
  1), one to three questions each, with pauses in which a small cache forgets the document.
- bursts: conversations of 1 to 12 turns that grow from 1k tokens on, with a heavy tail. Turns
  arrive at their times, answered or not, as from clients that retry or fan out.

The other two overload a fleet for as long as they last:

- weak: one to three questions of 8k to 120k tokens (log-uniform) with pauses of up to two minutes;
  nine in ten begin with the text before.
- heavy: conversations of 1 to 120 turns with a heavy tail (Pareto, exponent 0.91), each of 8k to
  120k tokens; four in ten begin with a part of the turn before, answered or not.

Sessions start at random over one unit of time; the simulation scales that to the load.
"""

import math
from collections.abc import Callable
from random import Random
from typing import Final

from benchmarks.routing.fleet import BLOCK, in_order
from benchmarks.routing.trace import DigestChains, RoutingTrace, TracedTurn

LONG_KINDS: Final = {"documents": 300, "bursts": 108}
"""Sessions per worker in a table."""

OVERLOAD_KINDS: Final = {"weak": 200, "heavy": 70}
"""The same; meant for 600,000 tokens of keys and values per worker."""

_MAX_TOKENS: Final = 120_000
_ANSWER_TOKENS: Final = (20, 500)
_PAUSE_S: Final = (1.0, 120.0)


def long_trace(kind: str, num_sessions: int, seed: int) -> RoutingTrace:
    """A trace of `num_sessions` conversations."""
    chance = Random(f"{kind}/{num_sessions}/{seed}")
    chains, num_ids = DigestChains(), 0
    turns: list[TracedTurn] = []
    for number in range(num_sessions):
        shape = _SHAPES[kind](chance)
        ids: list[int] = []
        after: tuple[int, ...] = ()
        starts_at = chance.random()
        for tokens, pause_s, gap, kept in shape:
            ids = ids[: int(kept * len(ids))][: tokens // BLOCK]
            num_new = tokens // BLOCK - len(ids)
            ids = [*ids, *range(num_ids, num_ids + num_new)]
            num_ids += num_new
            starts_at += gap
            turns.append(
                TracedTurn(
                    number=len(turns),
                    session=f"{kind}-{number}",
                    arrival_s=starts_at,
                    prompt_tokens=tokens,
                    output_tokens=_log_uniform(chance, _ANSWER_TOKENS),
                    digests=chains.digests(ids),
                    after=after if kind in _ANSWERED else (),
                    pause_s=pause_s,
                )
            )
            after = (len(turns) - 1,)
    return RoutingTrace(f"long_{kind}", BLOCK, in_order(turns))


_Shape = list[tuple[int, float, float, float]]
"""For each turn: tokens, seconds after the previous answer, part of the span after the previous
arrival, and the part of the previous turn's blocks that it begins with.
"""


def _documents(chance: Random) -> _Shape:
    tokens = min(_MAX_TOKENS, int(8_000 / (1.0 - chance.random())))
    shape = [(tokens, 0.0, 0.0, 1.0)]
    for _ in range(chance.randint(0, 2)):
        tokens = min(_MAX_TOKENS, tokens + _log_uniform(chance, (500, 12_000)))
        pause_s = math.exp(chance.uniform(*map(math.log, _PAUSE_S)))
        shape.append((tokens, pause_s, 0.0, 1.0))
    return shape


def _bursts(chance: Random) -> _Shape:
    tokens = min(_MAX_TOKENS, int(1_000 / (1.0 - chance.random()) ** (2 / 3)))
    shape = [(tokens, 0.0, 0.0, 1.0)]
    for _ in range(chance.randint(0, 11)):
        tokens = min(_MAX_TOKENS, tokens + _log_uniform(chance, (200, 4_000)))
        shape.append((tokens, 0.0, 0.01 * chance.random(), 1.0))
    return shape


def _weak(chance: Random) -> _Shape:
    shape: _Shape = []
    for _ in range(chance.randint(1, 3)):
        tokens = _log_uniform(chance, (8_000, _MAX_TOKENS))
        kept = 1.0 if chance.random() < 0.9 else 0.0
        shape.append((tokens, math.exp(chance.uniform(*map(math.log, _PAUSE_S))), 0.0, kept))
    return shape


def _heavy(chance: Random) -> _Shape:
    shape: _Shape = []
    for _ in range(int(min(120, (1.0 - chance.random()) ** -1.1))):
        tokens = _log_uniform(chance, (8_000, _MAX_TOKENS))
        kept = chance.random() if chance.random() < 0.4 else 0.0
        shape.append((tokens, 0.0, 0.01 * chance.random(), kept))
    return shape


_SHAPES: Final[dict[str, Callable[[Random], _Shape]]] = {
    "documents": _documents,
    "bursts": _bursts,
    "weak": _weak,
    "heavy": _heavy,
}
_ANSWERED: Final = ("documents", "weak")
"""Kinds whose turns wait for the previous answer."""


def _log_uniform(chance: Random, bounds: tuple[int, int]) -> int:
    return int(math.exp(chance.uniform(*map(math.log, bounds))))
