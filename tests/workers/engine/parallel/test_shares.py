"""The shares of all ranks are the whole network, each part once."""

from pathlib import Path

import pytest
import torch

from kernels.fp8 import BLOCK, FP8, Fp8Weight
from kernels.linear import Weight
from protocol.errors import ConfigError
from tests.fakes.tiny_families import FAMILIES, write_family
from workers.engine.models.description import ModelDescription
from workers.engine.models.dummy import draw_weights
from workers.engine.models.model_config import read_model_config
from workers.engine.parallel.shares import (
    LayerCut,
    Share,
    columns_of,
    config_of,
    model_of,
    rows_of,
)

CPU = torch.device("cpu")


UNCUT = {
    "gemma4", "gemma4_unified", "gemma4-experts", "gemma4-e", "glm4_moe_lite", "deepseek_v3",
}  # fmt: skip
"""They have traits that no rank has a share of."""


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in UNCUT])
def test_two_shares_are_as_large_as_their_descriptions_say(tmp_path: Path, family: str) -> None:
    config = read_model_config(write_family(tmp_path, family, vocab_size=152))
    whole = draw_weights(config, CPU, torch.float32)
    numbers = {share: _numbers(config, share) for share in (Share(0, 2), Share(1, 2))}
    products = sum(_size(weight) for layer in whole.layers for weight in (layer.qkv, layer.out))
    assert sum(found[0] for found in numbers.values()) == products
    assert len({found[1] for found in numbers.values()}) == 1
    for share in numbers:
        part = config_of(config, share)
        cut = LayerCut(config, share)
        for described, layer in zip(part.layers, whole.layers, strict=True):
            ours = cut(layer)
            assert [tuple(ours.qkv.shape), tuple(ours.out.shape)] == list(
                part.mixer_matrices(described)[:2]
            )
            assert [tuple(ours.gate_up.shape), tuple(ours.down.shape)] == list(
                part.mlp_matrices(described)[:2]
            )


def _numbers(config: ModelDescription, share: Share) -> tuple[int, int]:
    """Numbers of this rank's products with its mixers, and rows of its head."""
    whole = draw_weights(config, CPU, torch.float32)
    cut = LayerCut(config, share)
    layers = [cut(layer) for layer in whole.layers]
    head = model_of(whole, config, share).head
    return sum(_size(w) for layer in layers for w in (layer.qkv, layer.out)), head.shape[0]


def _size(weight: Weight) -> int:
    return int(weight.shape[0]) * int(weight.shape[1])


@pytest.mark.parametrize("family", sorted(UNCUT))
def test_what_has_no_share_is_refused(tmp_path: Path, family: str) -> None:
    config = read_model_config(write_family(tmp_path, family))
    with pytest.raises(ConfigError, match="tensor_parallel does not cut"):
        config_of(config, Share(0, 2))


def test_an_odd_number_of_heads_is_refused(tmp_path: Path) -> None:
    config = read_model_config(write_family(tmp_path, "llama3"))
    with pytest.raises(ConfigError, match="tensor_parallel = 3 does not divide the 4 of num_heads"):
        config_of(config, Share(0, 3))


def test_scales_follow_their_rows_and_columns() -> None:
    values = torch.arange(4.0 * BLOCK * BLOCK).remainder(7).view(2 * BLOCK, 2 * BLOCK).to(FP8)
    by_row = Fp8Weight(values, torch.arange(2.0 * BLOCK))
    by_block = Fp8Weight(values, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    last = slice(BLOCK, 2 * BLOCK)
    cut = rows_of(by_row, [last])
    assert isinstance(cut, Fp8Weight)
    assert torch.equal(cut.scales, by_row.scales[last])
    cut = columns_of(by_block, last)
    assert isinstance(cut, Fp8Weight)
    assert cut.scales.tolist() == [[2.0], [4.0]]
    with pytest.raises(ConfigError, match="holds parts of two ranks"):
        columns_of(by_block, slice(0, BLOCK // 2))
