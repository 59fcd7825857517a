"""`kernels/linear/wide.cu` on the CPU: its own source, compiled as C++ for an emulated card.

Owns the compilation and the launch. Needs `g++`.
"""

import ctypes
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from kernels.fp8 import Fp8Weight, parts_of
from kernels.linear import wide
from kernels.linear.config import Wide
from kernels.linear.epilogue import Epilogue
from tests.kernels.emulated_ampere import compile_cpp, read_headers

_HERE: Final = Path(__file__).parent
_BEYOND: Final = 16
"""Rows behind an answer."""

_built: dict[tuple[Path, tuple[tuple[str, int], ...]], ctypes.CDLL] = {}


class _Arguments(ctypes.Structure):
    _fields_ = [("addresses", ctypes.c_void_p * 7), ("numbers", ctypes.c_int * 4)]


def product(
    x: Tensor,
    weight: Tensor | Fp8Weight,
    config: Wide,
    room: Path,
    epilogue: Epilogue,
    x_scales: Tensor | None = None,
    source: Path = wide.product.path,
    *,
    is_back: bool = False,
) -> Tensor:
    """As `wide.wide`; `room`: a folder for libraries, `source`: the kernel's text. Threads go from
    the first or the last. Raises `AssertionError` in the words of the emulated card.
    """
    (num_rows, _), form = x.shape, epilogue.form
    values, scales, scale_block = parts_of(weight)
    num_out, tile_rows = form.num_out(weight.shape[0]), config.tile_rows(num_rows)
    constants = dict(wide.constants_of(config, tile_rows, form, scale_block=scale_block))
    out = torch.full((num_rows + _BEYOND, num_out), torch.nan, dtype=torch.bfloat16)
    operands = values, x, epilogue.residual, out, x_scales, scales, epilogue.bias
    arguments = _Arguments(
        (ctypes.c_void_p * 7)(*[(x if part is None else part).data_ptr() for part in operands]),
        (ctypes.c_int * 4)(num_rows, num_out, x.nbytes // num_rows // 2, weight.shape[0]),
    )
    grid = wide.num_programs(config, num_rows, num_out, form)
    used = wide.shared_bytes(constants)
    fault = _library(source, constants, room).run(ctypes.byref(arguments), grid, used, is_back)
    assert not fault, fault.decode()
    assert out[num_rows:].isnan().all(), "rows are written that do not exist"
    return out[:num_rows]


def _library(source: Path, constants: dict[str, int], room: Path) -> ctypes.CDLL:
    key = source, tuple(constants.items())
    if key not in _built:
        (room / "hopper.h").write_text(f'#include "{_HERE / "emulated_product.h"}"\n')
        (room / "multiply.h").write_text("")
        path = room / f"product{len(_built)}.so"
        macros = [f"-D{name}={value}" for name, value in {**constants, "HALF": 0}.items()]
        folders = [f"-I{folder}" for folder in (room, source.parent)]
        program = [str(_HERE / "emulated_product.cpp"), "-o", str(path)]
        compile_cpp("-include", str(read_headers()), "-shared", *folders, *macros, *program)
        library = ctypes.CDLL(str(path))
        library.run.restype = ctypes.c_char_p
        _built[key] = library
    return _built[key]
