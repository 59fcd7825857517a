"""Matrices in the 4-bit formats of published checkpoints, in our layout.

Owns how AWQ, GPTQ (with and without act order), compressed-tensors' pack-quantized and AutoRound's
exports lay out integers, scales and zero points, and which of them are supported. Must not know
models or files: `read` gives a tensor by name and shape.

    AWQ     qweight int32 [K, N / 8], columns of a word in the order 0 2 4 6 1 3 5 7; qzeros alike
    GPTQ    qweight int32 [K / 8, N], rows of a word in order; qzeros [K / g, N / 8], less one
            unless the format is gptq_v2; g_idx [K] where columns were sorted
    packed  weight_packed int32 [N, K / 8]; weight_zero_point [N / 8, K / g] unless symmetric
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from kernels.int4 import GROUPS, MIDDLE, PER_WORD, Int4Weight, packed
from protocol.errors import ConfigError

_AWQ_ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word the columns 0 to 7 are."""


class Files(Protocol):
    """Tensors by name."""

    @property
    def names(self) -> frozenset[str]:
        """Those that there are."""
        ...

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Of one of them."""
        ...

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """On the CPU. Raises `ConfigError` for another shape."""
        ...


Format = Callable[["Module"], Int4Weight]


class Module:
    """One matrix [num_rows, depth] of a checkpoint; `taken` are the names that it consists of."""

    def __init__(self, files: Files, name: str, num_rows: int, depth: int) -> None:
        self.name = name
        self.num_rows = num_rows
        self.depth = depth
        self.taken: set[str] = set()
        self._files = files

    def take(self, suffix: str, *shape: int) -> Tensor:
        name = f"{self.name}.{suffix}"
        self.taken.add(name)
        return self._files.read(name, shape)

    def has(self, suffix: str) -> bool:
        return f"{self.name}.{suffix}" in self._files.names

    def num_groups(self, suffix: str, dim: int) -> int:
        """Of columns, by the scales. Raises `ConfigError` for groups that no kernel has."""
        shape = self._files.shape_of(f"{self.name}.{suffix}")
        count = shape[dim] if len(shape) == 2 else 0
        size = self.depth // count if count else 0
        if not count or size * count != self.depth or (size not in GROUPS and size % GROUPS[0]):
            raise ConfigError(
                f"{self.name} has {count} groups of {self.depth} columns; groups of "
                f"{', '.join(map(str, GROUPS))} or multiples of {GROUPS[0]} columns are supported"
            )
        return count


def read_awq(module: Module) -> Int4Weight:
    """Raises `ConfigError`."""
    rows, depth = module.num_rows, module.depth
    groups = module.num_groups("scales", 0)
    words = module.take("qweight", depth, rows // PER_WORD)
    values = _nibbles(words)[..., list(_AWQ_ORDER)].reshape(depth, rows).t()
    zeros = _nibbles(module.take("qzeros", groups, rows // PER_WORD))[..., list(_AWQ_ORDER)]
    scales = module.take("scales", groups, rows)
    return _weight(module, values, scales.t(), zeros.reshape(groups, rows).t())


def read_gptq(module: Module, *, is_v2: bool = False) -> Int4Weight:
    """`is_v2`: zero points as they are. Raises `ConfigError`."""
    rows, depth = module.num_rows, module.depth
    groups = module.num_groups("scales", 0)
    words = module.take("qweight", depth // PER_WORD, rows)
    values = _nibbles(words.t().contiguous()).reshape(rows, depth)
    zeros = _nibbles(module.take("qzeros", groups, rows // PER_WORD)).reshape(groups, rows).t()
    if not is_v2:
        zeros = (zeros + 1) & 15
    scales = module.take("scales", groups, rows).t()
    order = None
    if module.has("g_idx"):
        group_of = module.take("g_idx", depth).long()
        usual = torch.arange(depth) // (depth // groups)
        if not torch.equal(group_of, usual):
            order = torch.argsort(group_of, stable=True)
            if not torch.equal(group_of[order], usual):
                raise ConfigError(f"{module.name}.g_idx has groups of unequal sizes")
            values = values[:, order]
    return _weight(module, values, scales, zeros, order)


def read_packed(module: Module) -> Int4Weight:
    """Raises `ConfigError`."""
    rows, depth = module.num_rows, module.depth
    groups = module.num_groups("weight_scale", 1)
    values = _nibbles(module.take("weight_packed", rows, depth // PER_WORD)).reshape(rows, depth)
    scales, zeros = module.take("weight_scale", rows, groups), None
    if module.has("weight_shape"):
        module.take("weight_shape", 2)
    if module.has("weight_g_idx"):
        raise ConfigError(f"{module.name} has a weight_g_idx: act order of this format is missing")
    if module.has("weight_zero_point"):
        words = module.take("weight_zero_point", rows // PER_WORD, groups)
        zeros = _nibbles(words.t().contiguous()).reshape(groups, rows).t()
    return _weight(module, values, scales, zeros)


def joined(weights: list[Int4Weight], names: list[str]) -> Int4Weight:
    """The rows of all, one matrix after the other. Raises `ConfigError` where they do not fit."""
    first = weights[0]
    for other, name in zip(weights[1:], names[1:], strict=True):
        is_same = (other.order is None) == (first.order is None)
        if is_same and first.order is not None and other.order is not None:
            is_same = torch.equal(other.order, first.order)
        if not is_same or other.group != first.group:
            raise ConfigError(
                f"{name} is quantised in other groups, or another order of columns, than {names[0]}"
            )
    zeros = None
    if any(one.zeros is not None for one in weights):
        zeros = torch.cat([_with_zeros(one) for one in weights])
    words, scales = (torch.cat([getattr(one, n) for one in weights]) for n in ("words", "scales"))
    return Int4Weight(words, scales, zeros, first.order)


def _with_zeros(weight: Int4Weight) -> Tensor:
    if weight.zeros is not None:
        return weight.zeros
    return torch.full(weight.scales.shape, MIDDLE, dtype=torch.uint8, device=weight.words.device)


def _nibbles(words: Tensor) -> Tensor:
    """The eight numbers of each word, lowest bits first: [..., 8]."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    return (words.to(torch.int32).unsqueeze(-1) >> shifts) & 15


def _weight(
    module: Module,
    values: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    order: Tensor | None = None,
) -> Int4Weight:
    """Large groups become several of the largest that kernels have, with one scale."""
    size = module.depth // scales.shape[1]
    if size not in GROUPS:
        times = size // GROUPS[0]
        size = GROUPS[0]
        scales = scales.repeat_interleave(times, 1)
        zeros = None if zeros is None else zeros.repeat_interleave(times, 1)
    if zeros is not None:
        zeros = None if bool((zeros == MIDDLE).all()) else zeros.to(torch.uint8).contiguous()
    return Int4Weight(packed(values.contiguous(), size), scales.contiguous(), zeros, order)


def int4_fault(stated: dict[str, Any]) -> str | None:
    """What a 4-bit `quantization_config` asks for that is missing, if anything."""
    method, bits = stated.get("quant_method"), stated.get("bits", stated.get("w_bit", 4))
    if bits != 4:
        return f"{bits} bits; 4 are supported"
    if method == "awq" and stated.get("version", "gemm") != "gemm":
        return f"AWQ's version {stated['version']}; gemm is supported"
    known = ("gptq", "gptq_v2", "", None)
    if method == "gptq" and stated.get("checkpoint_format") not in known:
        return f"GPTQ's checkpoint_format {stated['checkpoint_format']}"
    return None
