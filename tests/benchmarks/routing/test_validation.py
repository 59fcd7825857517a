"""The scaled fleet of `herma bench routing --validate`, as the simulation plays it."""

from benchmarks.routing.cost_model import CostModel
from benchmarks.routing.validation.command import (
    LIMITS,
    MAX_GAP,
    VALIDATED,
    ValidationFigures,
    judged,
    same_order,
    scaled_fleet,
    simulated,
)
from benchmarks.routing.worker import ENGINE_BLOCK
from protocol.hashing import block_digests, root_digest
from protocol.tokens import pack_tokens


def test_its_blocks_are_those_that_engines_and_gateways_name() -> None:
    """The simulated fleet names blocks as engines and gateways do, so that both find the same
    prefixes.
    """
    scaled = scaled_fleet(0.1)
    for turn, prompt in zip(scaled.trace.turns, scaled.prompts, strict=True):
        named = block_digests(root_digest("tiny"), pack_tokens(prompt), ENGINE_BLOCK)
        assert turn.digests == tuple(named)
        assert turn.prompt_tokens == len(prompt) < LIMITS.kv_tokens


def test_it_tells_policies_apart() -> None:
    """Affinity pays in the simulation by more than what the worlds may differ by."""
    cost = CostModel(0.02, 0.002, 0.0, 5e-4, 0.0)
    scaled = scaled_fleet(0.57)
    ours, by_session, round_robin = (simulated(scaled, name, cost) for name in VALIDATED)
    assert min(ours.hit_rate, by_session.hit_rate) > round_robin.hit_rate + 2 * MAX_GAP
    assert max(ours.ttft_mean_s, by_session.ttft_mean_s) < 0.9 * round_robin.ttft_mean_s


def test_only_what_differs_must_be_in_order() -> None:
    """A tie in theory may fall either way in practice; a lead may not be lost."""
    theory = {
        "a": ValidationFigures(0.5, 1.0),
        "b": ValidationFigures(0.5, 1.05),
        "c": ValidationFigures(0.5, 2.0),
    }
    assert same_order(theory, {**theory, "a": ValidationFigures(0.5, 1.9)})
    assert not same_order(theory, {**theory, "a": ValidationFigures(0.5, 2.1)})


def test_both_bars_decide() -> None:
    """Hit rates within three points, and the order."""
    theory = {"a": ValidationFigures(0.70, 1.0), "b": ValidationFigures(0.60, 2.0)}
    assert (
        judged(theory, {"a": ValidationFigures(0.68, 1.5), "b": ValidationFigures(0.62, 1.6)}) == 0
    )
    assert (
        judged(theory, {"a": ValidationFigures(0.66, 1.5), "b": ValidationFigures(0.60, 1.6)}) == 1
    )
    assert (
        judged(theory, {"a": ValidationFigures(0.70, 1.7), "b": ValidationFigures(0.60, 1.6)}) == 1
    )
