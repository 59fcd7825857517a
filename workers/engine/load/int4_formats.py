"""Matrices in the 4-bit formats of published checkpoints, in our layout.

Owns how AWQ, GPTQ (with and without act order), compressed-tensors' pack-quantized and AutoRound's
exports lay out integers, scales and zero points, and which of them are supported. Must not know
models or files: `read` gives a tensor by name and shape.

    AWQ     qweight int32 [K, N / 8], columns of a word in the order 0 2 4 6 1 3 5 7; qzeros alike
    GPTQ    qweight int32 [K / 8, N], rows of a word in order; qzeros [K / g, N / 8], less one
            unless the format is gptq_v2; g_idx [K] where columns were sorted
    packed  weight_packed int32 [N, K / 8]; weight_zero_point [N / 8, K / g] unless symmetric;
            weight_g_idx [K] where columns were sorted

Published mixtures have modules of 8 bits among those of 4: in GPTQ and packed they have four
numbers in a word instead of eight. They are widened, as all that no 4-bit product can take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from kernels.int4 import GROUPS, MIDDLE, PER_WORD, Int4Weight, in_order, packed
from protocol.errors import ConfigError

_AWQ_ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place of each of the columns 0 to 7 within a word."""


class TensorFiles(Protocol):
    """Tensors by name."""

    @property
    def names(self) -> frozenset[str]:
        """The names of all tensors."""
        ...

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of the tensor `name`."""
        ...

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name`, on the CPU. Raises `ConfigError` if its shape is another."""
        ...


Read = Int4Weight | Tensor
"""A module in 4 bits, or one of 8 bits as numbers in float32."""

Format = Callable[["Module"], Read]

_WORD_BITS: Final = 32
_BITS: Final = (4, 8)


class Module:
    """One matrix [num_rows, depth] of a checkpoint; `taken` are the names that it consists of."""

    def __init__(self, files: TensorFiles, name: str, num_rows: int, depth: int) -> None:
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

    def bits(self, suffix: str, dim: int) -> int:
        """The bits of a number, by how many words hold the columns. Raises `ConfigError` for other
        widths than those that can be read.
        """
        shape = self._files.shape_of(f"{self.name}.{suffix}")
        count = shape[dim] if len(shape) == 2 else 0
        for bits in _BITS:
            if count * _WORD_BITS == bits * self.depth:
                return bits
        raise ConfigError(
            f"{self.name} has {count} words of 32 bits for {self.depth} columns, which is neither "
            "4 nor 8 bits: take another quantised model, or the bf16 one with quantization = 'int4'"
        )

    def num_groups(self, suffix: str, dim: int, bits: int = 4) -> int:
        """Groups of columns, by the scales. Raises `ConfigError` for groups that no kernel has."""
        shape = self._files.shape_of(f"{self.name}.{suffix}")
        count = shape[dim] if len(shape) == 2 else 0
        size = self.depth // count if count else 0
        is_known = bits != 4 or size in GROUPS or size % GROUPS[0] == 0
        if not count or size * count != self.depth or not is_known:
            raise ConfigError(
                f"{self.name} has {count} groups of {self.depth} columns; groups of "
                f"{', '.join(map(str, GROUPS))} or multiples of {GROUPS[0]} columns are supported"
            )
        return count


def read_awq(module: Module) -> Read:
    """Raises `ConfigError`."""
    rows, depth = module.num_rows, module.depth
    groups = module.num_groups("scales", 0)
    words = module.take("qweight", depth, rows // PER_WORD)
    values = _numbers(words)[..., list(_AWQ_ORDER)].reshape(depth, rows).t()
    zeros = _numbers(module.take("qzeros", groups, rows // PER_WORD))[..., list(_AWQ_ORDER)]
    scales = module.take("scales", groups, rows)
    return _weight(module, values, scales.t(), zeros.reshape(groups, rows).t())


def read_gptq(module: Module, *, is_v2: bool = False) -> Read:
    """`is_v2`: zero points as they are. Raises `ConfigError`."""
    rows, depth = module.num_rows, module.depth
    bits = module.bits("qweight", 0)
    groups, middle = module.num_groups("scales", 0, bits), 1 << (bits - 1)
    words = module.take("qweight", depth * bits // _WORD_BITS, rows)
    values = _numbers(words.t().contiguous(), bits).reshape(rows, depth)
    zeros = _numbers(module.take("qzeros", groups, rows * bits // _WORD_BITS), bits)
    zeros = zeros.reshape(groups, rows).t()
    # AutoRound has also written symmetric weights whose zero points are less by one, under the name
    # of the format in which they are not. Zero points that are all equal reveal it, because zero
    # points that were chosen for each group differ.
    if not is_v2 or bool((zeros == middle - 1).all()):
        zeros = (zeros + 1) & (2 * middle - 1)
    scales = module.take("scales", groups, rows).t()
    order = _order(module, "g_idx", groups)
    return _weight(module, values, scales, zeros, order, bits)


def read_packed(module: Module) -> Read:
    """Raises `ConfigError`."""
    rows, depth = module.num_rows, module.depth
    bits = module.bits("weight_packed", 1)
    groups = module.num_groups("weight_scale", 1, bits)
    words = module.take("weight_packed", rows, depth * bits // _WORD_BITS)
    values = _numbers(words, bits).reshape(rows, depth)
    scales, zeros = module.take("weight_scale", rows, groups), None
    if module.has("weight_shape"):
        module.take("weight_shape", 2)
    if module.has("weight_zero_point"):
        words = module.take("weight_zero_point", rows * bits // _WORD_BITS, groups)
        zeros = _numbers(words.t().contiguous(), bits).reshape(groups, rows).t()
    return _weight(module, values, scales, zeros, _order(module, "weight_g_idx", groups), bits)


def _order(module: Module, suffix: str, groups: int) -> Tensor | None:
    """The order of the columns by their group; None if they are in that order already, which a
    group of -1 also says. Raises `ConfigError` for groups of unequal sizes.
    """
    if not module.has(suffix):
        return None
    group_of = module.take(suffix, module.depth).long()
    usual = torch.arange(module.depth) // (module.depth // groups)
    if torch.equal(group_of, usual) or bool((group_of < 0).any()):
        return None
    order = torch.argsort(group_of, stable=True)
    if not torch.equal(group_of[order], usual):
        raise ConfigError(f"{module.name}.{suffix} has groups of unequal sizes")
    return order


def joined(weights: list[Int4Weight]) -> Int4Weight | None:
    """The rows of all matrices, one after the other; None if the matrices differ in their groups or
    in the order of their columns.
    """
    first = weights[0]
    for other in weights[1:]:
        is_same = (other.order is None) == (first.order is None)
        if is_same and first.order is not None and other.order is not None:
            is_same = torch.equal(other.order, first.order)
        if not is_same or other.group != first.group:
            return None
    zeros = None
    if any(one.zeros is not None for one in weights):
        zeros = torch.cat([_with_zeros(one) for one in weights])
    words, scales = (torch.cat([getattr(one, n) for one in weights]) for n in ("words", "scales"))
    return Int4Weight(words, scales, zeros, first.order)


def widened(weight: Read, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The numbers [N, K] on `device`, each rounded once to `dtype`."""
    if isinstance(weight, Tensor):
        return weight.to(device, dtype)
    return in_order(weight.to(device), dtype)


def _with_zeros(weight: Int4Weight) -> Tensor:
    if weight.zeros is not None:
        return weight.zeros
    return torch.full(weight.scales.shape, MIDDLE, dtype=torch.uint8, device=weight.words.device)


def _numbers(words: Tensor, bits: int = 4) -> Tensor:
    """The numbers of each word, lowest bits first: uint8 [..., 32 / bits]. One number of all words
    at a time, because an output head has 1.3e9, of which int32 would take 5 GB.
    """
    count = _WORD_BITS // bits
    out = torch.empty(*words.shape, count, dtype=torch.uint8)
    for at in range(count):
        out[..., at] = (words >> (bits * at)) & ((1 << bits) - 1)
    return out


def _weight(
    module: Module,
    values: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    order: Tensor | None = None,
    bits: int = 4,
) -> Read:
    """The weight of a module. A group that is too large for the kernels becomes several groups
    with the same scale.
    """
    size = module.depth // scales.shape[1]
    if bits != _BITS[0]:
        return _wide(values, scales, zeros, order)
    if order is not None:
        values = values[:, order]
    if size not in GROUPS:
        times = size // GROUPS[0]
        size = GROUPS[0]
        scales = scales.repeat_interleave(times, 1)
        zeros = None if zeros is None else zeros.repeat_interleave(times, 1)
    if zeros is not None:
        zeros = None if bool((zeros == MIDDLE).all()) else zeros.to(torch.uint8).contiguous()
    return Int4Weight(packed(values.contiguous(), size), scales.contiguous(), zeros, order)


def _wide(values: Tensor, scales: Tensor, zeros: Tensor | None, order: Tensor | None) -> Tensor:
    """Numbers of 8 bits times their scales, float32 [N, K]; groups are columns in this `order`."""
    depth = values.shape[1]
    size = depth // scales.shape[1]
    place = torch.arange(depth) if order is None else order.argsort()
    column = place // size
    zero = 128.0 if zeros is None else zeros.to(torch.float32)[:, column]
    return (values.to(torch.float32) - zero) * scales.to(torch.float32)[:, column]


def int4_fault(stated: dict[str, Any]) -> str | None:
    """What a 4-bit `quantization_config` asks for that is missing, if anything."""
    method, bits = stated.get("quant_method"), stated.get("bits", stated.get("w_bit", 4))
    if bits != 4:
        return f"{bits!r} bits; 4 are supported"
    version = str(stated.get("version", "gemm"))
    if method == "awq" and version.lower() != "gemm":
        return f"AWQ's version {version}; gemm is supported"
    if method == "gptq" and gptq_format(stated) not in {"gptq", "gptq_v2"}:
        return f"GPTQ's checkpoint_format {gptq_format(stated)}"
    return None


def gptq_format(stated: dict[str, Any]) -> str:
    """The format by `checkpoint_format`, or by `format`, as GPTQModel spells it in newer files."""
    return str(stated.get("checkpoint_format") or stated.get("format") or "gptq").lower()
