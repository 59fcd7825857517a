"""Models in 4 bits: made at load, or read from the formats of the field; the rest is refused.

Each format is written from the same integers, scales and zero points. What is read must be those
numbers exactly, and the model must answer as one in float32 of the very same weights.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernels.int4 import Int4Weight, in_order
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from workers.engine.runner import Runner
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan

SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
}
GROUP = 64
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)

AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}
ROUND = {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"}
WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}},
}
SORTED = GPTQ | {"desc_act": True}
FORMATS = {
    "awq": AWQ,
    "gptq": GPTQ,
    "gptq symmetric": GPTQ | {"sym": True},
    "gptq sorted": SORTED,
    "gptq v2": GPTQ | {"checkpoint_format": "gptq_v2"},
    "auto-round": ROUND,
    "auto-round awq": ROUND | {"packing_format": "auto_round:auto_awq"},
    "packed": PACKED,
    "packed symmetric": PACKED,
}


class Matrix(NamedTuple):
    """Integers [N, K], scales and zero points [N, K / group], and the group of each column."""

    values: Tensor
    scales: Tensor
    zeros: Tensor
    group_of: Tensor

    @property
    def dense(self) -> Tensor:
        zeros, scales = self.zeros[:, self.group_of], self.scales.float()[:, self.group_of]
        return (self.values - zeros).float() * scales


def words(numbers: Tensor, columns: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Eight numbers of the last dimension to a word, in that order."""
    eights = numbers.unflatten(-1, (-1, 8))[..., list(columns)].to(torch.int64)
    packed = (eights << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32).contiguous()


def drawn(shape: tuple[int, int], name: str, seed: int) -> Matrix:
    generator = torch.Generator().manual_seed(seed)
    num_rows, depth = shape
    groups = num_rows, depth // GROUP
    values = torch.randint(0, 16, shape, generator=generator)
    zeros = torch.randint(1, 15, groups, generator=generator)
    if "symmetric" in name:
        zeros = torch.full(groups, 8)
    scales = (torch.rand(groups, generator=generator) * 0.02 + 0.01).to(torch.float16)
    group_of = torch.arange(depth) // GROUP
    if "sorted" in name:
        order = torch.Generator().manual_seed(depth)  # one for all that read the same rows
        group_of = group_of[torch.randperm(depth, generator=order)]
    return Matrix(values, scales, zeros, group_of)


def stored(matrix: Matrix, module: str, name: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one module."""
    values, scales, zeros, group_of = matrix
    if "awq" in name:
        yield f"{module}.qweight", words(values.t(), AWQ_COLUMNS)
        yield f"{module}.qzeros", words(zeros.t(), AWQ_COLUMNS)
        yield f"{module}.scales", scales.t().contiguous()
    elif "packed" in name:
        yield f"{module}.weight_packed", words(values)
        yield f"{module}.weight_scale", scales
        yield f"{module}.weight_shape", torch.tensor(values.shape)
        if "symmetric" not in name:
            yield f"{module}.weight_zero_point", words(zeros.t()).t().contiguous()
    else:
        yield f"{module}.qweight", words(values).t().contiguous()
        yield f"{module}.qzeros", words((zeros - int(name != "gptq v2")).t())
        yield f"{module}.scales", scales.t().contiguous()
        yield f"{module}.g_idx", group_of.to(torch.int32)
        yield f"{module}.bias", torch.zeros(len(values), dtype=torch.float16)


def twins(tmp_path: Path, name: str) -> tuple[Path, Path]:
    """A checkpoint in 4 bits, and one in float32 of the very same weights."""
    small, large = tmp_path / "small", tmp_path / "large"
    write_tiny_model(small, **SHAPE, quantization_config=FORMATS[name])
    write_tiny_model(large, **SHAPE)
    quantised, dense = {}, {}
    for at, (key, tensor) in enumerate(load_file(small / "model.safetensors").items()):
        if not key.endswith("_proj.weight"):
            quantised[key] = dense[key] = tensor
            continue
        matrix = drawn((tensor.shape[0], tensor.shape[1]), name, at)
        dense[key] = matrix.dense
        quantised |= dict(stored(matrix, key.removesuffix(".weight"), name))
    save_file(quantised, small / "model.safetensors")
    save_file(dense, large / "model.safetensors")
    return small, large


def greedy(runner: Runner, count: int = 24) -> list[int]:
    """Tokens of one prompt, one step each."""
    ids = array("I", range(2, 40))
    start = SequenceStart(
        0, ids, len(ids) + count, SamplingParams(max_tokens=count, temperature=0.0), 0
    )
    found: list[int] = []
    blocks = tuple(range(4))
    chunk = Chunk(0, 0, len(ids), blocks, samples=True)
    for step in range(count):
        plan = StepPlan(step, (start,) if step == 0 else (), (chunk,), ended=())
        (sampled,) = runner.run(plan).sampled
        found += sampled.ids
        chunk = Chunk(0, len(ids) + step, 1, blocks, samples=True)
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_read_exactly_and_answer_as_their_numbers(tmp_path: Path, name: str) -> None:
    small, large = twins(tmp_path, name)
    runner, exact = load_tiny(small), load_tiny(large)
    assert runner.facts.dtype == "float32+int4"
    for layer, wanted in zip(runner.model.weights.layers, exact.model.weights.layers, strict=True):
        for part in ("qkv", "out", "gate_up", "down"):
            weight = getattr(layer, part)
            assert isinstance(weight, Int4Weight)
            assert (weight.zeros is None) == ("symmetric" in name)
            assert (weight.order is None) == ("sorted" not in name)
            assert torch.equal(in_order(weight, torch.float32), getattr(wanted, part))
    assert greedy(runner) == greedy(exact)


def test_layers_are_quantised_at_load_and_nothing_else(tmp_path: Path) -> None:
    """A matrix whose columns no group divides stays as it is."""
    model_dir = write_tiny_model(tmp_path, **SHAPE | {"intermediate_size": 200})
    runner, exact = load_tiny(model_dir, quantization="int4"), load_tiny(model_dir)
    weights, before = runner.model.weights, exact.model.weights
    assert runner.facts.dtype == "float32+int4"
    assert torch.equal(weights.embedding, before.embedding)
    for layer, was in zip(weights.layers, before.layers, strict=True):
        assert torch.equal(layer.down, was.down)
        for part in ("qkv", "out", "gate_up"):
            weight, dense = getattr(layer, part), getattr(was, part)
            assert isinstance(weight, Int4Weight)
            assert weight.nbytes < dense.nbytes / 6
            error = in_order(weight, torch.float32) - dense
            assert 0.01 < float(error.norm() / dense.norm()) < 0.12


REFUSED: list[tuple[dict[str, Any], str]] = [
    (AWQ | {"bits": 8}, "8 bits"),
    (AWQ | {"version": "marlin"}, "marlin"),
    (GPTQ | {"checkpoint_format": "marlin"}, "marlin"),
    (ROUND | {"packing_format": "auto_round:llm_compressor"}, "auto-round"),
    ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
    (PACKED | {"config_groups": {"g": {"weights": WEIGHTS | {"num_bits": 8}}}}, "compressed"),
]


@pytest.mark.parametrize(("stated", "word"), REFUSED)
def test_what_is_missing_is_named(tmp_path: Path, stated: dict[str, Any], word: str) -> None:
    model_dir = write_tiny_model(tmp_path, **SHAPE, quantization_config=stated)
    with pytest.raises(ConfigError, match=word) as caught:
        load_tiny(model_dir)
    assert "\n" not in str(caught.value)


def test_neighbours_must_be_alike(tmp_path: Path) -> None:
    """Queries and keys are one matrix; columns in other orders cannot be."""
    small, _ = twins(tmp_path, "gptq sorted")
    tensors = load_file(small / "model.safetensors")
    name = "model.layers.0.self_attn.k_proj.g_idx"
    tensors[name] = tensors[name].flip(0)
    save_file(tensors, small / "model.safetensors")
    with pytest.raises(ConfigError, match="another order of columns"):
        load_tiny(small)
    with pytest.raises(ConfigError, match="in 4 bits already"):
        load_tiny(small, quantization="int4")
