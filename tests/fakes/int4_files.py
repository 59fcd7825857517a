"""Checkpoints in the 4-bit formats of the field, written from drawn integers, scales and zero
points; and the greedy answer of a runner.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from protocol.sampling import SamplingParams
from tests.fakes.tiny_models import write_tiny_model
from workers.engine.runner import ModelRunner
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
    "packed sorted": PACKED,
    "gptq v2 by format": GPTQ | {"format": "gptq_v2"},
    "auto-round v2": ROUND | {"packing_format": "auto_round:gptqmodel"},
    "auto-round v2 symmetric": ROUND | {"packing_format": "auto_round"},
    "auto-round symmetric": ROUND | {"packing_format": "auto_round"},
    "awq in capitals": AWQ | {"version": "GEMM"},
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


def words(numbers: Tensor, columns: tuple[int, ...] = tuple(range(8)), *, bits: int = 4) -> Tensor:
    """As many numbers of the last dimension as a word has, in that order."""
    count = 32 // bits
    parts = numbers.unflatten(-1, (-1, count))[..., list(columns[:count])].to(torch.int64)
    packed = (parts << torch.arange(0, 32, bits)).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32).contiguous()


def drawn(shape: tuple[int, int], name: str, seed: int, *, bits: int = 4) -> Matrix:
    generator = torch.Generator().manual_seed(seed)
    num_rows, depth = shape
    groups = num_rows, depth // GROUP
    values = torch.randint(0, 1 << bits, shape, generator=generator)
    zeros = torch.randint(1, (1 << bits) - 1, groups, generator=generator)
    if "symmetric" in name:
        zeros = torch.full(groups, 1 << (bits - 1))
    scales = (torch.rand(groups, generator=generator) * 0.02 + 0.01).to(torch.float16)
    if bits == 8:
        scales /= 16
    group_of = torch.arange(depth) // GROUP
    if "sorted" in name:
        order = torch.Generator().manual_seed(depth)  # one for all that read the same rows
        group_of = group_of[torch.randperm(depth, generator=order)]
    return Matrix(values, scales, zeros, group_of)


def stored(
    matrix: Matrix, module: str, name: str, *, bits: int = 4
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one module."""
    values, scales, zeros, group_of = matrix
    if "awq" in name:
        yield f"{module}.qweight", words(values.t(), AWQ_COLUMNS)
        yield f"{module}.qzeros", words(zeros.t(), AWQ_COLUMNS)
        yield f"{module}.scales", scales.t().contiguous()
    elif "packed" in name:
        yield f"{module}.weight_packed", words(values, bits=bits)
        yield f"{module}.weight_scale", scales
        yield f"{module}.weight_shape", torch.tensor(values.shape)
        if "symmetric" not in name:
            yield f"{module}.weight_zero_point", words(zeros.t(), bits=bits).t().contiguous()
        if "sorted" in name:
            yield f"{module}.weight_g_idx", group_of.to(torch.int32)
    else:
        yield f"{module}.qweight", words(values, bits=bits).t().contiguous()
        yield f"{module}.qzeros", words((zeros - int("v2" not in name)).t(), bits=bits)
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


def greedy(runner: ModelRunner, count: int = 24) -> list[int]:
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
