"""`int4_tiles.cu` for one row of x on the CPU: its own source, compiled for an emulated card.

Owns which of its instructions `emulated_hopper.h` stands for, and the launch. Needs `g++`.
"""

import ctypes
import re
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from kernels.int4 import Int4Weight
from kernels.linear import int4_tiles
from kernels.linear.config import Int4Tiles
from kernels.linear.epilogue import NOTHING, Epilogue
from tests.kernels.emulated_ampere import compile_cpp, read_headers

_HERE: Final = Path(__file__).parent
_EMULATED: Final = ("load_tiles", "multiply_bytes", "times", "wide", "narrow", "load_of")
"""Functions of one instruction each."""

_OTHERS: Final = ("fetch_line", "multiply", "less", "pair_of")
"""Functions that one row does not use."""

_INSTRUCTIONS: Final = {
    r'asm volatile\("bar\.sync 1, %0;" ::"n"\((.*?)\) : "memory"\);': r"meet_team(\1);",
    r'asm volatile\("(?:griddepcontrol|fence|prefetch|barrier\.cluster|mov)[^;]*;.*?\);': ";",
    r"extern __shared__ .*?;": "",
    r"typedef unsigned (?:short u16|char u8);": "",
    r'#include "hopper\.h"': f'#include "{_HERE / "emulated_hopper.h"}"',
}
"""Patterns of the code between functions, and their replacements."""

_RUN: Final = """
struct Arguments {
  Map words;
  const u16* scales;
  const u8* zeros;
  const u16 *norm, *bias, *residual, *x;
  u16* out;
  int num_out, eps_bits;
} given;

void kernel() {
  const auto& [words, scales, zeros, norm, bias, residual, x, out, num_out, eps_bits] = given;
  int4_tiles(words, Map{}, scales, zeros, norm, bias, residual, x, out, 1, num_out, eps_bits);
}

extern "C" const char* run(const Arguments* arguments, int grid, int bytes, int back) {
  given = *arguments, shared_bytes = bytes, *fault = 0;
  for (int i = 0; i < grid && !*fault; ++i) run_block(i, 32 * (WARPS + 1), back);
  return fault;
}
"""


class _Map(ctypes.Structure):
    _fields_ = [("words", ctypes.c_void_p), ("numbers", ctypes.c_int * 4)]


class _Arguments(ctypes.Structure):
    _fields_ = [("map", _Map), ("addresses", ctypes.c_void_p * 7), ("numbers", ctypes.c_int * 2)]


def product(
    x: Tensor,
    weight: Int4Weight,
    config: Int4Tiles,
    room: Path,
    epilogue: Epilogue = NOTHING,
    *,
    is_back: bool,
) -> Tensor:
    """As `int4_tiles.product` of one row, without splits; threads from the first or the last on.
    `room`: an empty folder. Raises `AssertionError` in the words of the emulated card.
    """
    (num_weight_rows, depth), form = weight.shape, epilogue.form
    constants = int4_tiles.constants_of(
        config, depth, weight.group, is_half=x.dtype == torch.float16,
        is_scale_half=weight.scales.dtype == torch.float16, has_zeros=weight.zeros is not None,
        epilogue=form, is_lone=True,
    )  # fmt: skip
    assert (constants["LONE"], constants["SPLITS"], len(x)) == (1, 1, 1)
    (room / "kernel.cpp").write_text(_source())
    macros = [f"-D{name}={value}" for name, value in constants.items()]
    headers, source = ("-include", str(read_headers())), str(room / "kernel.cpp")
    compile_cpp(*headers, "-shared", *macros, source, "-o", str(room / "kernel.so"))
    num_out, features = form.num_out(num_weight_rows), config.tile // (1 + form.swiglu)
    out = torch.full((1, num_out), torch.nan, dtype=x.dtype)
    operands = (
        weight.scales, weight.zeros, epilogue.norm, epilogue.bias, epilogue.residual, x, out,
    )  # fmt: skip
    sizes = num_weight_rows, depth // 4, features, constants["WIDE"]
    arguments = _Arguments(
        _Map(weight.words.data_ptr(), (ctypes.c_int * 4)(*sizes)),
        (ctypes.c_void_p * 7)(*[(x if part is None else part).data_ptr() for part in operands]),
        (ctypes.c_int * 2)(num_out, epilogue.eps_bits),
    )
    library = ctypes.CDLL(str(room / "kernel.so"))
    library.run.restype = ctypes.c_char_p
    used, grid = int4_tiles.shared_bytes(constants), -(-num_out // features)
    fault = library.run(ctypes.byref(arguments), grid, used, is_back)
    assert not fault, fault.decode()
    return out


def _source() -> str:
    text = Path(int4_tiles.__file__).with_name("int4_tiles.cu").read_text()
    for name in (*_EMULATED, *_OTHERS):
        function = rf"__device__ __forceinline__ \w+ {name}\(.*?\n}}\n"
        text, found = re.subn(function, "", text, count=1, flags=re.DOTALL)
        assert found, name
    for pattern, emulated in _INSTRUCTIONS.items():
        text = re.sub(pattern, emulated, text, flags=re.DOTALL)
    return text + _RUN
