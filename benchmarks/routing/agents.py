"""Generated agents in a closed loop, of the shape that operators report.

Owns one kind of trace: a fixed number of agents, each of which works through conversations one
after another. `benchmarks/agents/shape.py` has the shape. Must not know policies.
"""

from random import Random

from benchmarks.agents.shape import SHARED_TOKENS, conversation
from benchmarks.routing.fleet import BLOCK, in_order
from benchmarks.routing.trace import DigestChains, RoutingTrace, TracedTurn


def agents_trace(num_agents: int, num_conversations: int, seed: int) -> RoutingTrace:
    """`num_agents` agents with `num_conversations` each. All begin within ten seconds, anywhere on
    the way through their first conversations, as in a loop that has run for long.
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
    return RoutingTrace(f"agents_{num_agents}", BLOCK, in_order(turns))
