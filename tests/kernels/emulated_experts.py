"""`kernels/experts/mxfp4.cu` on the CPU: its own source, compiled as C++ for an emulated card.

Owns the compilation and the launch. Needs `g++`.
"""

import ctypes
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from kernels.experts import mxfp4
from kernels.experts.many import PairList
from kernels.experts.shapes import Activation, Routed
from kernels.mxfp4 import Mxfp4Weight
from tests.kernels.emulated_ampere import compile_cpp, read_headers

_HERE: Final = Path(__file__).parent
_ARCH: Final = 80
_BEYOND: Final = 32
"""Rows behind an answer, for a kernel that takes its place for another."""

_built: dict[tuple[Path, tuple[tuple[str, int], ...]], ctypes.CDLL] = {}


class _Arguments(ctypes.Structure):
    _fields_ = [("addresses", ctypes.c_void_p * 10), ("numbers", ctypes.c_int * 5)]


class _Range(ctypes.Structure):
    _fields_ = [("first", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


class Card(NamedTuple):
    """How the emulated card runs programs: `room` is for libraries, `source` the kernel's text,
    `grid` the number of programs; copies are early or late, threads go from the first or the last.
    """

    room: Path
    source: Path = mxfp4.mxfp4_experts.path
    grid: int = 3
    is_eager: bool = False
    is_back: bool = False


class Product(NamedTuple):
    """The inputs of a product: x [rows, depth], or gated [pairs, depth]; `listed` of many rows."""

    x: Tensor
    stack: Mxfp4Weight
    bias: Tensor | None
    routed: Routed
    listed: PairList | None
    num_experts: int


def gate_up(card: Card, given: Product, activation: Activation, tiles: mxfp4.Mxfp4Tiles) -> Tensor:
    """As `mxfp4.gate_up`."""
    width = given.stack.shape[0] // given.num_experts // 2
    out = _poisoned(given.routed.experts.numel(), width, given.x.dtype)
    x_rows = 1 if given.listed is None else min(len(given.x), given.listed.rows)
    _run(card, given, out, None, activation, tiles, x_rows)
    return _written(out)


def down(card: Card, given: Product, residual: Tensor, tiles: mxfp4.Mxfp4Tiles) -> Tensor:
    """As `mxfp4.down`; with a list the products float32 [pairs, hidden] that it sums."""
    (num_rows, active), hidden = given.routed.experts.shape, residual.shape[1]
    if given.listed is None:
        out = _poisoned(num_rows, hidden, residual.dtype)
    else:
        out = _poisoned(num_rows * active, hidden, torch.float32)
    x_rows = active if given.listed is None else min(num_rows, given.listed.rows)
    _run(card, given, out, residual, None, tiles, x_rows)
    return _written(out)


def _poisoned(num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
    return torch.full((num_rows + _BEYOND, width), torch.nan, dtype=dtype)


def _written(out: Tensor) -> Tensor:
    """Without the rows beyond, which must be as they were."""
    assert out[-_BEYOND:].isnan().all(), "rows are written that do not exist"
    return out[:-_BEYOND]


def _run(
    card: Card,
    given: Product,
    out: Tensor,
    residual: Tensor | None,
    activation: Activation | None,
    tiles: mxfp4.Mxfp4Tiles,
    x_rows: int,
) -> None:
    """Raises `AssertionError` in the words of the emulated card."""
    depth, listed, active = given.x.shape[1], given.listed, given.routed.experts.shape[1]
    product = mxfp4.Product(
        residual is None, listed is not None, depth, out.shape[1], active, given.bias is not None
    )
    experts = given.routed.experts
    pairs, own, count = (experts, experts, experts) if listed is None else listed[:3]
    other = given.x if given.bias is None else given.bias
    tensors = (
        given.x, own, pairs, count, given.routed.weights, given.stack.pairs, given.stack.powers,
        other, given.x if residual is None else residual, out,
    )  # fmt: skip
    numbers = given.routed.experts.numel(), *map(mxfp4.bits_of, activation or (0.0,) * 4)
    arguments = _Arguments(
        (ctypes.c_void_p * 10)(*[tensor.data_ptr() for tensor in tensors]),
        (ctypes.c_int * 5)(*numbers),
    )
    used = mxfp4.used_bytes(tiles, depth, x_rows, is_listed=listed is not None)
    copied = (_Range * 1)(_Range(given.stack.pairs.data_ptr(), given.stack.pairs.nbytes))
    library = _library(card, dict(mxfp4.constants_of(product, tiles, _ARCH)))
    fault = library.run(
        ctypes.byref(arguments), copied, 1, card.grid, used, card.is_eager, card.is_back
    )
    assert not fault, fault.decode()


def _library(card: Card, constants: dict[str, int]) -> ctypes.CDLL:
    key = card.source, tuple(constants.items())
    if key not in _built:
        (card.room / "ampere.h").write_text(f'#include "{_HERE / "emulated_card.h"}"\n')
        path = card.room / f"experts{len(_built)}.so"
        macros = [f"-D{name}={value}" for name, value in key[1]]
        folders = [f"-I{card.room}", f"-I{card.source.parent}"]
        source = [str(_HERE / "emulated_experts.cpp"), "-o", str(path)]
        compile_cpp("-include", str(read_headers()), "-shared", *folders, *macros, *source)
        library = ctypes.CDLL(str(path))
        library.run.restype = ctypes.c_char_p
        _built[key] = library
    return _built[key]
