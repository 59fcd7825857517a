"""Generated traces of requests that share a cold prefix and arrive together.

Owns one kind, `shared`: an agent reads a short task, then asks 2 to 16 questions about a document
of 4k to 60k tokens (log-uniform) that no worker has read, all within half a second. Every question
is a conversation of its own, with 50 to 2,000 tokens behind the document; a third goes on with one
more turn. Must not know policies.

Tasks start at random over one unit of time; the simulation scales that to the load.
"""

import math
from random import Random
from typing import Final

from benchmarks.routing.fleet import BLOCK, in_order
from benchmarks.routing.trace import DigestChains, RoutingTrace, TracedTurn

FANOUT_KINDS: Final = {"shared": 60}
"""Tasks per worker in a table."""

_TASK_TOKENS: Final = 800
_DOCUMENT_TOKENS: Final = (4_000, 60_000)
_QUESTION_TOKENS: Final = (50, 2_000)
_NUM_QUESTIONS: Final = (2, 16)
_ANSWER_TOKENS: Final = (20, 500)
_WITHIN_S: Final = 0.5
_PAUSE_S: Final = (1.0, 20.0)


def fanout_trace(kind: str, num_tasks: int, seed: int) -> RoutingTrace:
    """A trace of `num_tasks` tasks."""
    chance = Random(f"fanout/{kind}/{num_tasks}/{seed}")
    chains, num_ids = DigestChains(), 0
    turns: list[TracedTurn] = []

    def ask(
        session: str, ids: list[int], tokens: int, after: tuple[int, ...], pause_s: float
    ) -> int:
        """Add a turn whose blocks beyond `ids` are new. Returns its number."""
        nonlocal num_ids
        num_new = tokens // BLOCK - len(ids)
        ids += range(num_ids, num_ids + num_new)
        num_ids += max(0, num_new)
        turns.append(
            TracedTurn(
                number=len(turns),
                session=session,
                arrival_s=starts_at,
                prompt_tokens=tokens,
                output_tokens=_log_uniform(chance, _ANSWER_TOKENS),
                digests=chains.digests(ids),
                after=after,
                pause_s=pause_s,
            )
        )
        return turns[-1].number

    for number in range(num_tasks):
        starts_at = chance.random()
        task = ask(f"task-{number}", [], _TASK_TOKENS, (), 0.0)
        document = _log_uniform(chance, _DOCUMENT_TOKENS)
        shared = list(range(num_ids, num_ids + document // BLOCK))
        num_ids += len(shared)
        for question in range(chance.randint(*_NUM_QUESTIONS)):
            session, ids = f"task-{number}.{question}", list(shared)
            tokens = document + _log_uniform(chance, _QUESTION_TOKENS)
            first = ask(session, ids, tokens, (task,), chance.uniform(0, _WITHIN_S))
            if chance.random() < 1 / 3:
                tokens += _log_uniform(chance, _QUESTION_TOKENS)
                pause_s = math.exp(chance.uniform(*map(math.log, _PAUSE_S)))
                ask(session, ids, tokens, (first,), pause_s)
    return RoutingTrace(f"fanout_{kind}", BLOCK, in_order(turns))


def _log_uniform(chance: Random, bounds: tuple[int, int]) -> int:
    return int(math.exp(chance.uniform(*map(math.log, bounds))))
