"""`int4_ampere.cu` on the CPU: its own source, compiled as C++ for an emulated card.

Owns the compilation and the launch. Needs `g++`.
"""

import ctypes
import struct
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from torch import Tensor

from kernels.int4 import Int4Weight
from kernels.linear import int4_ampere
from kernels.linear.config import Int4Ampere
from kernels.linear.epilogue import NOTHING, Epilogue

COMPILER: Final = which("g++")
_HERE: Final = Path(__file__).parent
_SOURCES: Final = Path(int4_ampere.__file__).parent
_ARCH: Final = 80

_headers: Final = TemporaryDirectory(prefix="herma-headers-")
_built: dict[tuple[tuple[str, int], ...], ctypes.CDLL] = {}


class _Arguments(ctypes.Structure):
    _fields_ = [("addresses", ctypes.c_void_p * 10), ("numbers", ctypes.c_int * 5)]


class _Range(ctypes.Structure):
    _fields_ = [("first", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


def _library(constants: dict[str, int], room: Path) -> ctypes.CDLL:
    key = tuple(constants.items())
    if key not in _built:
        (room / "ampere.h").write_text(f'#include "{_HERE / "emulated_card.h"}"\n')
        path = room / f"kernel{len(_built)}.so"
        macros = [f"-D{name}={value}" for name, value in key]
        folders = [f"-I{room}", f"-I{_SOURCES}"]
        source = [str(_HERE / "emulated_ampere.cpp"), "-o", str(path)]
        compile_cpp("-include", str(read_headers()), "-shared", *folders, *macros, *source)
        library = ctypes.CDLL(str(path))
        library.run.restype = ctypes.c_char_p
        _built[key] = library
    return _built[key]


def compile_cpp(*arguments: str) -> None:
    """`-Og` takes three quarters of the time of `-O1`; its programs take longer, but by less."""
    assert COMPILER is not None
    # Fortified, `_longjmp` would refuse to go to another thread's stack.
    options = "-std=c++17", "-Og", "-fPIC", "-w", "-U_FORTIFY_SOURCE"
    subprocess.run([COMPILER, *options, *arguments], check=True)


@cache
def read_headers() -> Path:
    """The standard's headers that the emulated card includes, compiled once in a process: to read
    them takes half of each compilation.
    """
    path = Path(_headers.name) / "standard.h"
    lines = (_HERE / "emulated_card.h").read_text().splitlines()
    path.write_text("".join([f"{line}\n" for line in lines if line.startswith("#include <")]))
    compile_cpp("-x", "c++-header", str(path), "-o", f"{path}.gch")
    return path


def product(
    x: Tensor,
    weight: Int4Weight,
    config: Int4Ampere,
    room: Path,
    epilogue: Epilogue = NOTHING,
    *,
    is_eager: bool,
    is_back: bool,
) -> Tensor:
    """As `int4_ampere.product`, with copies as early or as late as they may be, and threads and
    programs from the first or the last on. `room`: a folder for libraries. Raises `AssertionError`
    in the words of the emulated card.
    """
    num_rows, depth = x.shape
    norm, eps, bias, residual, swiglu, _ = epilogue
    num_out = epilogue.form.num_out(weight.shape[0])
    constants = int4_ampere.constants_of(
        config, weight.group, _ARCH, is_half=x.dtype == torch.float16,
        is_scale_half=weight.scales.dtype == torch.float16, has_zeros=weight.zeros is not None,
        epilogue=epilogue.form,
    )  # fmt: skip
    out = torch.full((num_rows, num_out), torch.nan, dtype=x.dtype)
    tiles = int4_ampere.tiles_of(config, num_rows, num_out, swiglu=swiglu)
    left = torch.full((int4_ampere.scratch_numbers(config, tiles),), torch.nan)
    arrived = torch.zeros(tiles, dtype=torch.int32)
    parts = weight.words, weight.scales, weight.zeros, x, norm, bias, residual
    tensors = [x if part is None else part for part in (*parts, out, left, arrived)]
    bits = struct.unpack("i", struct.pack("f", eps))[0]
    arguments = _Arguments(
        (ctypes.c_void_p * 10)(*[tensor.data_ptr() for tensor in tensors]),
        (ctypes.c_int * 5)(num_rows, num_out, depth, config.splits, bits),
    )
    ranges = _ranges([part for part in parts if part is not None])
    used = int4_ampere.used_bytes(config, depth, weight.group, x_rows=min(8, num_rows))
    fault = _library(dict(constants), room).run(
        ctypes.byref(arguments), ranges, len(ranges), tiles * config.splits, used, is_eager, is_back
    )
    assert not fault, fault.decode()
    assert not arrived.any(), "counters are left behind"
    return out


def _ranges(tensors: Iterable[Tensor]) -> Any:
    found = [_Range(tensor.data_ptr(), tensor.nbytes) for tensor in tensors]
    return (_Range * len(found))(*found)
