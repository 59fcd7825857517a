"""A mixture is the one that transformers computes, whatever its rows choose."""

import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeMoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from kernels.experts import Activation, ExpertWeights, Routed, Routing, mix, route

HIDDEN, WIDTH = 48, 20


def _drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator)


def _mixed(x: Tensor, routing: Routing, *, invariant: bool = False, **changes: object) -> Tensor:
    count = routing.num_experts
    weights = ExpertWeights(router=_drawn(count, HIDDEN, seed=1))
    weights = weights._replace(**changes)
    routed = route(x, weights, routing, invariant=invariant)
    return mix(
        x,
        _drawn(2 * WIDTH * count, HIDDEN, seed=2) * 0.2,
        _drawn(HIDDEN * count, WIDTH, seed=3) * 0.2,
        weights,
        routed,
        routing,
        Activation(),
        torch.zeros_like(x),
        invariant=invariant,
    )


@pytest.mark.parametrize("num_rows", [1, 3, 50])
@pytest.mark.parametrize("renormalises", [True, False])
@torch.inference_mode()
def test_softmax_routing_is_that_of_qwen3(num_rows: int, renormalises: bool) -> None:
    """The router and all experts, with weights as they are or made to add up to 1."""
    config = transformers.Qwen3MoeConfig(
        hidden_size=HIDDEN, moe_intermediate_size=WIDTH, num_experts=7, num_experts_per_tok=3,
        norm_topk_prob=renormalises,
    )  # fmt: skip
    block = Qwen3MoeSparseMoeBlock(config)
    block.gate.weight.copy_(_drawn(7, HIDDEN, seed=1))
    block.experts.gate_up_proj.copy_(
        (_drawn(7 * 2 * WIDTH, HIDDEN, seed=2) * 0.2).view(7, -1, HIDDEN)
    )
    block.experts.down_proj.copy_((_drawn(7 * HIDDEN, WIDTH, seed=3) * 0.2).view(7, HIDDEN, -1))
    x = _drawn(num_rows, HIDDEN)
    found = _mixed(x, Routing(7, 3, renormalises=renormalises))
    torch.testing.assert_close(found, block(x.unsqueeze(0))[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("groups", "active_groups"), [(1, 1), (4, 2)])
@torch.inference_mode()
def test_sigmoid_routing_is_that_of_glm(groups: int, active_groups: int) -> None:
    """Scores by sigmoid, a bias that only chooses, groups, and a factor."""
    config = transformers.Glm4MoeConfig(
        hidden_size=HIDDEN, moe_intermediate_size=WIDTH, n_routed_experts=8, num_experts_per_tok=2,
        n_group=groups, topk_group=active_groups, n_shared_experts=1, norm_topk_prob=True,
        routed_scaling_factor=1.7,
    )  # fmt: skip
    block, bias = Glm4MoeMoE(config), _drawn(8, seed=5)
    block.gate.weight.copy_(_drawn(8, HIDDEN, seed=1))
    block.gate.e_score_correction_bias.copy_(bias)
    block.experts.gate_up_proj.copy_(
        (_drawn(8 * 2 * WIDTH, HIDDEN, seed=2) * 0.2).view(8, -1, HIDDEN)
    )
    block.experts.down_proj.copy_((_drawn(8 * HIDDEN, WIDTH, seed=3) * 0.2).view(8, HIDDEN, -1))
    for weight in block.shared_experts.parameters():
        weight.zero_()
    x = _drawn(30, HIDDEN)
    routing = Routing(8, 2, True, groups, active_groups, renormalises=True, scale=1.7)
    expected = block(x.unsqueeze(0))[0]
    torch.testing.assert_close(_mixed(x, routing, choice_bias=bias), expected, atol=1e-5, rtol=0)
    assert not torch.allclose(_mixed(x, routing), expected, atol=1e-2)


@torch.inference_mode()
def test_clamped_gates_and_biases_are_those_of_gpt_oss() -> None:
    """Gates are large enough that the limit counts."""
    config = transformers.GptOssConfig(
        hidden_size=HIDDEN, intermediate_size=WIDTH, num_local_experts=5, num_experts_per_tok=2
    )
    block = GptOssExperts(config)
    gate_up, down = _drawn(5, 2 * WIDTH, HIDDEN, seed=2), _drawn(5, HIDDEN, WIDTH, seed=3)
    biases = _drawn(5, 2 * WIDTH, seed=4), _drawn(5, HIDDEN, seed=6)

    def alternating(part: Tensor) -> Tensor:
        return torch.stack(part.chunk(2, dim=1), dim=2).flatten(1, 2)

    block.gate_up_proj.copy_(alternating(gate_up).transpose(1, 2))
    block.gate_up_proj_bias.copy_(alternating(biases[0]))
    block.down_proj.copy_(down.transpose(1, 2))
    block.down_proj_bias.copy_(biases[1])
    x = 3 * _drawn(9, HIDDEN)
    weights = ExpertWeights(
        _drawn(5, HIDDEN, seed=1), _drawn(5, seed=7), gate_up_bias=biases[0], down_bias=biases[1]
    )
    routing = Routing(5, 2)
    routed = route(x, weights, routing)
    found = mix(
        x, gate_up.flatten(0, 1), down.flatten(0, 1), weights, routed, routing,
        Activation(1.702, 1.0, 7.0), torch.zeros_like(x),
    )  # fmt: skip
    expected = block(x, routed.experts.long(), routed.weights)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


@torch.inference_mode()
def test_a_row_is_the_same_beside_any_others() -> None:
    """Bit for bit, if it is asked for; experts have one row to 40 then."""
    x = _drawn(40, HIDDEN)
    whole = _mixed(x, Routing(6, 2), invariant=True)
    for row in range(0, 40, 7):
        alone = _mixed(x[row : row + 1], Routing(6, 2), invariant=True)
        assert torch.equal(alone[0], whole[row])


@pytest.mark.parametrize(
    ("routing", "changes"),
    [
        (Routing(7, 8), {}),
        (Routing(7, 2, num_groups=2), {}),
        (Routing(9, 2), {"router": _drawn(7, HIDDEN)}),
        (Routing(7, 2), {"choice_bias": _drawn(6)}),
        (Routing(8, 5, num_groups=4, num_active_groups=2), {}),
    ],
)
def test_what_does_not_fit_is_refused(routing: Routing, changes: dict[str, object]) -> None:
    """What does not fit is refused before anything is computed."""
    with pytest.raises(ValueError, match=r"\d"):
        _mixed(_drawn(3, HIDDEN), routing, **changes)


def test_stacks_that_do_not_fit_are_refused() -> None:
    """A stack of fewer experts than the router has."""
    x, routing = _drawn(2, HIDDEN), Routing(4, 1)
    weights = ExpertWeights(_drawn(4, HIDDEN))
    stacks = _drawn(3 * 2 * WIDTH, HIDDEN), _drawn(3 * HIDDEN, WIDTH)
    routed = Routed(torch.zeros(2, 1, dtype=torch.int32), torch.ones(2, 1))
    with pytest.raises(ValueError, match="stacks"):
        mix(x, *stacks, weights, routed, routing, Activation(), x)
