"""`kernels/experts/wide.cu` on the CPU: its own source, compiled as C++ for an emulated card.

Owns which of its instructions `emulated_wide.h` stands for, and the launch. Needs `g++`.
"""

import ctypes
import re
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from kernels.cuda.source import bits_of
from kernels.experts import wide
from kernels.experts.many import PairList
from kernels.experts.shapes import Activation
from kernels.experts.wide import WideProduct
from kernels.mxfp4 import Mxfp4Weight
from tests.kernels.emulated_ampere import compile_cpp, read_headers

_HERE: Final = Path(__file__).parent
_BEYOND: Final = 8
"""Rows behind an answer."""

_EMULATED: Final = (
    "copy16", "arrive_behind_copies", "load_early", "prefetch", "fetch_box", "fetch_line",
    "store_turned", "load_shared", "load_word", "store_word", "load_byte", "multiply_add",
)  # fmt: skip
"""Functions of one instruction each."""

_INSTRUCTIONS: Final = {
    r"extern __shared__ .*?;": "",
    r"typedef unsigned (?:short u16|char u8);": "",
    r'#include "multiply\.h"': "",
    r'#include "hopper\.h"': f'#include "{_HERE / "emulated_wide.h"}"',
}
"""Patterns of the code between functions, and their replacements."""

_RUN: Final = """
struct Arguments {
  Map map;
  const void* addresses[8];
  int numbers[6];
} given;

void kernel() {
  const auto& a = given.addresses;
  const auto& n = given.numbers;
  wide_experts(given.map, (const u16*)a[0], (const int*)a[1], (const int*)a[2], (const int*)a[3],
               (const u8*)a[4], (const u16*)a[5], (u16*)a[6], (int*)a[7], n[0], n[1], n[2], n[3],
               n[4], n[5]);
  while (!behind[threadIdx.x].empty()) end_copies();
}

extern "C" const char* run(const Arguments* arguments, const Range* ranges, int num_ranges,
                           int grid, int bytes, int eager, int back) {
  given = *arguments, shared_bytes = bytes, is_eager = eager, *fault = 0, gridDim.x = grid;
  tensors.assign(ranges, ranges + num_ranges);
  const int threads = FETCHERS + 128 * GROUPS;
  for (int i = 0; i < grid && !*fault; ++i)
    behind.clear(), behind.resize(threads), run_block(i, threads, back);
  return fault;
}
"""


class _Map(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("numbers", ctypes.c_long * 15)]


class _Arguments(ctypes.Structure):
    _fields_ = [
        ("map", _Map), ("addresses", ctypes.c_void_p * 8), ("numbers", ctypes.c_int * 6)
    ]  # fmt: skip


class _Range(ctypes.Structure):
    _fields_ = [("first", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


def run(
    product: WideProduct,
    x: Tensor,
    stack: Mxfp4Weight,
    bias: Tensor | None,
    listed: PairList,
    num_pairs: int,
    activation: Activation | None,
    room: Path,
    *,
    grid: int = 2,
    is_eager: bool = False,
    is_back: bool = False,
) -> Tensor:
    """As the launches of `kernels.experts.wide`; `room`: a folder for libraries. Raises
    `AssertionError` in the words of the emulated card.
    """
    path = room / f"{product.is_up:d}.so"
    if not path.exists():
        source = path.with_suffix(".cpp")
        source.write_text(_source())
        macros = [f"-D{name}={value}" for name, value in wide.constants_of(product).items()]
        folder = f"-I{Path(wide.__file__).parent}"
        headers = "-include", str(read_headers())
        compile_cpp(*headers, "-shared", folder, *macros, str(source), "-o", str(path))
    out = torch.full((num_pairs + _BEYOND, product.out), torch.nan, dtype=torch.bfloat16)
    sizes, strides, box = wide.boxes_of(product, stack.shape[0])
    numbers = (*sizes, *strides, 32, *box)
    other, taken = x if bias is None else bias, torch.zeros(2, dtype=torch.int32)
    operands = x, listed.pairs, listed.experts, listed.num_tiles, stack.powers, other, out, taken
    arguments = _Arguments(
        _Map(stack.pairs.data_ptr(), (ctypes.c_long * 15)(*numbers)),
        (ctypes.c_void_p * 8)(*[each.data_ptr() for each in operands]),
        (ctypes.c_int * 6)(
            num_pairs, stack.shape[0], *[bits_of(each) for each in activation or (0.0,) * 4]
        ),
    )
    read = [_Range(each.data_ptr(), each.nbytes) for each in (x, stack.pairs, stack.powers)]
    library = ctypes.CDLL(str(path))
    library.run.restype = ctypes.c_char_p
    fault = library.run(
        ctypes.byref(arguments), (_Range * 3)(*read), 3, grid, product.shared_bytes, is_eager,
        is_back,
    )  # fmt: skip
    assert not fault, fault.decode()
    assert not taken.any(), "units are left as taken"
    assert out[num_pairs:].isnan().all(), "rows are written that do not exist"
    return out[:num_pairs]


def _source() -> str:
    text = wide.wide_experts.path.read_text()
    for name in _EMULATED:
        function = rf"(?:template <[^\n]*>\n)?__device__ __forceinline__ \w+ {name}\(.*?\n}}\n"
        text, found = re.subn(function, "", text, count=1, flags=re.DOTALL)
        assert found, name
    text = text.replace(
        "__device__ __forceinline__ float wide(u16 bits) {", "inline float wide(u16 bits) {"
    )
    for pattern, emulated in _INSTRUCTIONS.items():
        text = re.sub(pattern, emulated, text, flags=re.DOTALL)
    return text + _RUN
