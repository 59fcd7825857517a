"""The shares of all ranks are the whole network, each part once."""

from pathlib import Path

import pytest
import torch

from kernels.fp8 import BLOCK, FP8, Fp8Weight
from kernels.int4 import Int4Weight, dequantise, packed
from kernels.linear import Weight
from kernels.mxfp4 import Mxfp4Weight
from kernels.mxfp4 import dequantise as dequantise_mxfp4
from protocol.errors import ConfigError
from tests.fakes.tiny_families import FAMILIES, write_family
from workers.engine.models.description import ModelDescription
from workers.engine.models.dummy import draw_weights
from workers.engine.models.model_config import read_model_config
from workers.engine.models.weights import LayerWeights
from workers.engine.parallel.shares import (
    LayerCut,
    Share,
    columns_of,
    config_of,
    model_of,
    rows_of,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("family", list(FAMILIES))
def test_two_shares_are_as_large_as_their_descriptions_say(tmp_path: Path, family: str) -> None:
    config = read_model_config(write_family(tmp_path, family, vocab_size=152))
    whole = draw_weights(config, CPU, torch.float32)
    numbers = {share: _numbers(config, share) for share in (Share(0, 2), Share(1, 2))}
    products = sum(_size(weight) for layer in whole.layers for weight in _of_heads(layer))
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
    return sum(_size(w) for layer in layers for w in _of_heads(layer)), head.shape[0]


def _of_heads(layer: LayerWeights) -> list[Weight]:
    """The products of which each rank has a part, and no two ranks the same."""
    return [layer.out, layer.gate_up, layer.down]


def _size(weight: Weight) -> int:
    return int(weight.shape[0]) * int(weight.shape[1])


def test_keys_heads_are_repeated_where_there_are_fewer_than_ranks() -> None:
    """Each rank has the one that its queries read."""
    parts = [Share(index, 4).of_keys(2) for index in range(4)]
    assert [(part.start, part.stop) for part in parts] == [(0, 1), (0, 1), (1, 2), (1, 2)]
    parts = [Share(index, 2).of_keys(6) for index in range(2)]
    assert [(part.start, part.stop) for part in parts] == [(0, 3), (3, 6)]


def test_an_odd_number_of_heads_is_refused(tmp_path: Path) -> None:
    config = read_model_config(write_family(tmp_path, "llama3"))
    with pytest.raises(ConfigError, match="tensor_parallel = 3 does not divide the 4 of num_heads"):
        config_of(config, Share(0, 3))


@pytest.mark.parametrize("has_zeros", [True, False])
@pytest.mark.parametrize(("group", "kept"), [(128, 64), (64, 64), (32, 32)])
def test_groups_follow_their_rows_and_columns(group: int, kept: int, *, has_zeros: bool) -> None:
    """Groups follow their rows and columns: where a group has columns of two ranks it becomes two
    groups with the same scale.
    """
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(0, 16, (6, 384), generator=generator)
    scales = torch.rand(6, 384 // group, generator=generator) + 0.5
    zeros = torch.randint(1, 15, scales.shape, generator=generator).to(torch.uint8)
    weight = Int4Weight(packed(values, group), scales, zeros if has_zeros else None)
    whole = dequantise(weight, torch.float32)
    halves = [columns_of(weight, slice(0, 192)), columns_of(weight, slice(192, 384))]
    assert torch.equal(torch.cat([_wide(half) for half in halves], dim=1), whole)
    assert [half.group for half in halves if isinstance(half, Int4Weight)] == [kept, kept]
    cut = rows_of(weight, [slice(4, 6), slice(0, 1)])
    assert torch.equal(_wide(cut), whole[[4, 5, 0]])


def _wide(weight: Weight) -> torch.Tensor:
    assert isinstance(weight, Int4Weight)
    return dequantise(weight, torch.float32)


def test_columns_that_no_cut_parts_are_refused() -> None:
    words, scales = torch.zeros(2, 24, dtype=torch.int32), torch.ones(2, 3)
    with pytest.raises(ConfigError, match="the columns 0 to 80 of a matrix in 4 bits, and 32"):
        columns_of(Int4Weight(words, scales), slice(0, 80))
    weight = Int4Weight(words, scales, order=torch.arange(192).flip(0))
    with pytest.raises(ConfigError, match="sorted its columns by activations"):
        columns_of(weight, slice(0, 96))
    cut = rows_of(weight, [slice(1, 2)])
    assert isinstance(cut, Int4Weight)
    assert cut.order is weight.order


def test_powers_follow_their_rows_and_columns() -> None:
    generator = torch.Generator().manual_seed(2)
    pairs = torch.randint(0, 256, (4, 48), generator=generator).to(torch.uint8)
    powers = torch.randint(120, 130, (4, 3), generator=generator).to(torch.uint8)
    weight = Mxfp4Weight(pairs, powers)
    whole = dequantise_mxfp4(weight, torch.float32)
    parts = [columns_of(weight, slice(32 * at, 32 * at + 32)) for at in range(3)]
    assert all(isinstance(part, Mxfp4Weight) for part in parts)
    wide = [
        dequantise_mxfp4(part, torch.float32) for part in parts if isinstance(part, Mxfp4Weight)
    ]
    assert torch.equal(torch.cat(wide, dim=1), whole)
    cut = rows_of(weight, [slice(2, 4)])
    assert isinstance(cut, Mxfp4Weight)
    assert torch.equal(dequantise_mxfp4(cut, torch.float32), whole[2:])
    with pytest.raises(ConfigError, match="the columns 0 to 48 of a matrix in 4 bits, and 32"):
        columns_of(weight, slice(0, 48))


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
