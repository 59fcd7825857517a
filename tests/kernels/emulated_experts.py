"""`kernels/experts/mxfp4.cu`, `listed.cu` and `rounded.cu` on the CPU: their own sources, compiled
as C++ for an emulated card.

Owns the compilation and the launch. Needs `g++`.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from kernels.cuda.source import bits_of
from kernels.experts import listed, mxfp4, rounded
from kernels.experts.counted import CountedProduct
from kernels.experts.shapes import Activation, Routed
from kernels.experts.stack import Stack
from kernels.experts.tiles import stored
from kernels.mxfp4 import Mxfp4Weight
from tests.kernels.emulated_ampere import compile_cpp, read_headers

_HERE: Final = Path(__file__).parent
_SOURCES: Final = Path(mxfp4.__file__).parent
_HEADERS: Final = {
    "ampere.h": "emulated_card.h", "hopper.h": "emulated_rounded.h", "multiply.h": "",
}  # fmt: skip
"""The emulated headers that replace those of a source."""
_ARCH: Final = 80
_BEYOND: Final = 32
"""Rows behind an answer, for a kernel that takes its place for another."""

_built: dict[tuple[Path, str, tuple[tuple[str, int], ...]], ctypes.CDLL] = {}


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
    """The inputs of a product: x [rows, depth], or gated [pairs, depth]."""

    x: Tensor
    stack: Stack
    bias: Tensor | None
    routed: Routed
    num_experts: int


def gate_up(card: Card, given: Product, activation: Activation, tiles: mxfp4.Mxfp4Tiles) -> Tensor:
    """Like `mxfp4.gate_up`."""
    width = given.stack.shape[0] // given.num_experts // 2
    out = _poisoned(given.routed.experts.numel(), width, given.x.dtype)
    _run(card, given, out, None, activation, tiles, 1)
    return _written(out)


def down(card: Card, given: Product, residual: Tensor, tiles: mxfp4.Mxfp4Tiles) -> Tensor:
    """Like `mxfp4.down`."""
    out = _poisoned(*residual.shape, residual.dtype)
    _run(card, given, out, residual, None, tiles, given.routed.experts.shape[1])
    return _written(out)


def listed_gate_up(
    card: Card, given: Product, activation: Activation, tiles: listed.ListedTiles
) -> Tensor:
    """Like `listed.gate_up`."""
    width = given.stack.shape[0] // given.num_experts // 2
    out = _poisoned(given.routed.experts.numel(), width, given.x.dtype)
    _run_listed(card, given, out, activation, tiles)
    return _written(out)


def listed_down(card: Card, given: Product, tiles: listed.ListedTiles) -> Tensor:
    """The products float32 [pairs, hidden] that `listed.down` sums."""
    hidden = given.stack.shape[0] // given.num_experts
    out = _poisoned(given.routed.experts.numel(), hidden, torch.float32)
    _run_listed(card, given, out, None, tiles)
    return _written(out)


def rounded_gate_up(
    card: Card, given: Product, activation: Activation, tiles: rounded.RoundedTiles
) -> Tensor:
    """Like `rounded.gate_up`."""
    width = given.stack.shape[0] // given.num_experts // 2
    out = _poisoned(given.routed.experts.numel(), width, given.x.dtype)
    _run_rounded(card, given, out, activation, tiles)
    return _written(out)


def rounded_down(card: Card, given: Product, tiles: rounded.RoundedTiles) -> Tensor:
    """The products bfloat16 [pairs, hidden] that `rounded.down` sums."""
    hidden = given.stack.shape[0] // given.num_experts
    out = _poisoned(given.routed.experts.numel(), hidden, given.x.dtype)
    _run_rounded(card, given, out, None, tiles)
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
    assert isinstance(given.stack, Mxfp4Weight)
    depth, active, has_bias = (
        given.x.shape[1],
        given.routed.experts.shape[1],
        given.bias is not None,
    )
    product = mxfp4.Product(residual is None, depth, out.shape[1], active, has_bias)
    tensors = (
        given.x, given.routed.experts, given.routed.weights, given.stack.pairs, given.stack.powers,
        given.x if given.bias is None else given.bias, given.x if residual is None else residual,
        out,
    )  # fmt: skip
    used = mxfp4.used_bytes(tiles, depth, x_rows)
    constants = dict(mxfp4.constants_of(product, tiles, _ARCH))
    _launch(card, "emulated_experts.cpp", constants, used, tensors, given, activation)


def _run_listed(
    card: Card,
    given: Product,
    out: Tensor,
    activation: Activation | None,
    tiles: listed.ListedTiles,
) -> None:
    active, has_bias = given.routed.experts.shape[1], given.bias is not None
    values, scales, _, form, _ = stored(given.stack)
    sizes = given.num_experts, given.x.shape[1], out.shape[1], active, has_bias
    product = CountedProduct(activation is not None, form, *sizes)
    experts, other = given.routed.experts, given.x if given.bias is None else given.bias
    tensors = given.x, experts, values, scales, other, out
    used = listed.used_bytes(product, tiles)
    constants = dict(listed.constants_of(product, tiles, _ARCH))
    _launch(card, "emulated_listed.cpp", constants, used, tensors, given, activation)


def _run_rounded(
    card: Card,
    given: Product,
    out: Tensor,
    activation: Activation | None,
    tiles: rounded.RoundedTiles,
) -> None:
    active, has_bias = given.routed.experts.shape[1], given.bias is not None
    values, scales, _, form, _ = stored(given.stack)
    sizes = given.num_experts, given.x.shape[1], out.shape[1], active, has_bias
    product = CountedProduct(activation is not None, form, *sizes)
    experts, other = given.routed.experts, given.x if given.bias is None else given.bias
    tensors = given.x, experts, values, scales, other, out
    used = rounded.used_bytes(product, tiles)
    constants = {**rounded.constants_of(product, tiles), "HALF": 0}
    _launch(card, "emulated_rounded.cpp", constants, used, tensors, given, activation)


def _launch(
    card: Card,
    program: str,
    constants: dict[str, int],
    used: int,
    tensors: Sequence[Tensor],
    given: Product,
    activation: Activation | None,
) -> None:
    class Arguments(ctypes.Structure):
        _fields_ = [("addresses", ctypes.c_void_p * len(tensors)), ("numbers", ctypes.c_int * 5)]

    numbers = given.routed.experts.numel(), *map(bits_of, activation or (0.0,) * 4)
    arguments = Arguments(
        (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors]),
        (ctypes.c_int * 5)(*numbers),
    )
    values = stored(given.stack).values
    copied = (_Range * 1)(_Range(values.data_ptr(), values.nbytes))
    fault = _library(card, program, constants).run(
        ctypes.byref(arguments), copied, 1, card.grid, used, card.is_eager, card.is_back
    )
    assert not fault, fault.decode()


def _library(card: Card, program: str, constants: dict[str, int]) -> ctypes.CDLL:
    key = card.source, program, tuple(constants.items())
    if key not in _built:
        for name, instead in _HEADERS.items():
            (card.room / name).write_text(f'#include "{_HERE / instead}"\n' if instead else "")
        path = card.room / f"experts{len(_built)}.so"
        macros = [f"-D{name}={value}" for name, value in constants.items()]
        macros.append("-DEMPTY_COPIES_ANYWHERE=1")
        folders = [f"-I{folder}" for folder in (card.room, card.source.parent, _SOURCES)]
        source = [str(_HERE / program), "-o", str(path)]
        compile_cpp("-include", str(read_headers()), "-shared", *folders, *macros, *source)
        library = ctypes.CDLL(str(path))
        library.run.restype = ctypes.c_char_p
        _built[key] = library
    return _built[key]
