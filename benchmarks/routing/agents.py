"""Generated agents in a closed loop, of the shape that operators report.

Owns one kind of trace: a fixed number of agents, each of which works through conversations one
after another. `benchmarks/agents/shape.py` has the shape. Must not know policies.
"""

import math
from random import Random
from typing import Final

from benchmarks.agents.shape import SHARED_TOKENS, conversation
from benchmarks.routing.fleet import BLOCK, in_order
from benchmarks.routing.trace import DigestChains, RoutingTrace, TracedTurn

READERS: Final = "readers"
"""The key of people who chat beside agents."""
_READER_TURNS: Final = 400
_READER_TOKENS: Final = (2_000, 24_000)
_READER_PAUSE_S: Final = (5.0, 60.0)


def agents_trace(
    num_agents: int, num_conversations: int, seed: int, num_readers: int = 0
) -> RoutingTrace:
    """`num_agents` agents with `num_conversations` each. All begin within ten seconds, anywhere on
    the way through their first conversations, as in a loop that has run for long. Beside them
    `num_readers` people chat: each reads an answer for 5 to 60 s, and begins anew after 24k tokens.
    """
    chance = Random(f"agents/{num_agents}/{seed}")
    chains = DigestChains()
    turns: list[TracedTurn] = []
    shared = list(range(SHARED_TOKENS // BLOCK))
    num_ids = len(shared)
    for agent in range(num_agents):
        after: tuple[int, ...] = ()
        starts_at = chance.uniform(0.0, 10.0)
        for number in range(num_conversations):
            shape, ids = conversation(chance), list(shared)
            skipped = chance.randrange(len(shape)) if number == 0 else 0
            for index, turn in enumerate(shape):
                num_new = max(0, turn.prompt_tokens // BLOCK - len(ids))
                ids = [*ids, *range(num_ids, num_ids + num_new)]
                num_ids += num_new
                if index < skipped:
                    continue
                turns.append(
                    TracedTurn(
                        number=len(turns),
                        session=f"agent-{agent}.{number}",
                        arrival_s=starts_at,
                        prompt_tokens=turn.prompt_tokens,
                        output_tokens=turn.answer_tokens,
                        digests=chains.digests(ids),
                        after=after,
                        pause_s=turn.pause_s if after else 0.0,
                        tool=turn.tool,
                        is_last=turn.is_last,
                    )
                )
                after = (len(turns) - 1,)
    for reader in range(num_readers):
        _read(turns, chains, reader, num_ids, chance)
        num_ids += _READER_TURNS * _READER_TOKENS[1] // BLOCK
    return RoutingTrace(f"agents_{num_agents}", BLOCK, in_order(turns))


def _read(
    turns: list[TracedTurn], chains: DigestChains, reader: int, num_ids: int, chance: Random
) -> None:
    """Add the turns of one person; ids from `num_ids` on are free."""
    ids: list[int] = []
    tokens, number = _READER_TOKENS[1], 0
    after: tuple[int, ...] = ()
    starts_at = chance.uniform(0.0, 10.0)
    for _ in range(_READER_TURNS):
        tokens += int(chance.uniform(200, 2_000))
        if tokens > _READER_TOKENS[1]:
            tokens, number, ids = _READER_TOKENS[0], number + 1, []
        num_new = tokens // BLOCK - len(ids)
        ids = [*ids, *range(num_ids, num_ids + num_new)]
        num_ids += num_new
        pause_s = math.exp(chance.uniform(*map(math.log, _READER_PAUSE_S)))
        turns.append(
            TracedTurn(
                number=len(turns),
                session=f"reader-{reader}.{number}",
                arrival_s=starts_at,
                prompt_tokens=tokens,
                output_tokens=int(chance.uniform(100, 500)),
                digests=chains.digests(ids),
                after=after,
                pause_s=pause_s if after else 0.0,
                key=READERS,
            )
        )
        after = (len(turns) - 1,)
