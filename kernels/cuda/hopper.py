"""What kernels in CUDA C++ for Hopper have in common, on the host's side.

Owns whether a device runs them, the shared header, and the tensor cores' instruction as text. Must
not know any kernel.
"""

import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

import torch

from kernels.choose import capability, is_card
from kernels.cuda.source import CompileError, compiler_version

ALIGNED: Final = 16
"""Bytes: the copy engine takes no other addresses."""

SHARED_BYTES: Final = 227 * 1024
"""Shared memory of a multiprocessor, for one program."""

BF16: Final = "k16.f32.bf16.bf16"
E4M3: Final = "k32.f32.e4m3.e4m3"
"""The forms of `wgmma` that multiply numbers in bfloat16 and in e4m3."""

_LINE_BYTES: Final = 128
"""The bytes of a row in a tile."""

_CAPABILITY: Final = (9, 0)


def header(name: str = "hopper.h") -> dict[str, str]:
    """A header of this folder, as a source's headers name it."""
    return {name: Path(__file__).with_name(name).read_text(encoding="utf-8")}


@cache
def runs_on(device: torch.device) -> bool:
    """Whether such kernels can be compiled, and run there."""
    return is_card(device) and capability(device) == _CAPABILITY and has_compiler()


@cache
def has_compiler() -> bool:
    """Whether NVRTC, which comes with torch for CUDA, works; logs one line if not."""
    try:
        compiler_version()
    except CompileError as error:
        why = str(error).splitlines()[-1]
        print(f"kernels in CUDA C++ are left to Triton and the library: {why}", file=sys.stderr)
        return False
    return True


def wgmma(
    n: int, first: int, left: Iterable[str], right: str, *, tail: str, kind: str = BF16
) -> str:
    """A statement: `sums`[first, first + n / 2) += A B of PTX's `wgmma`, m64nN, 32 bytes of columns
    deep; `kind` is `BF16` or `E4M3`.

    `left` are four registers or one description of a tile in shared memory, `right` is another;
    `tail` are PTX's operands behind them, whether sums count first.
    """
    count = n // 2
    places = ", ".join([f"%{number}" for number in range(count)])
    outputs = ", ".join([f'"+f"(sums[{first + number}])' for number in range(count)])
    names = list(left)
    from_registers = len(names) > 1
    a = ", ".join([f"%{count + number}" for number in range(len(names))])
    inputs = [f'"{"r" if from_registers else "l"}"({name})' for name in names]
    inputs.append(f'"l"({right})')
    return f"""
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n{n}{kind} {{{places}}}, "
      "{f"{{{a}}}" if from_registers else a}, %{count + len(names)}, {tail};\\n"
      : {outputs} : {", ".join(inputs)});"""


def tile_products(n: int, *, kind: str, parts: int = 1) -> str:
    """Functions that multiply 64 rows of weights by `n` rows of x, both tiles in shared memory, in
    so many `parts` of these rows. `multiply(sums, weights, x)` adds products of 32 bytes of
    columns; for `multiply_first` sums that were there do not count; `end_products(sums)`: all are
    there.
    """
    sums, count = f"float (&sums)[{n // 2}]", n // parts
    # In 16 bits either operand could be transposed.
    tail = "1, 1" if kind == E4M3 else "1, 1, 0, 0"
    text = []
    for name, adds in (("multiply_first", 0), ("multiply", 1)):
        calls = [
            wgmma(
                count, part * count // 2, ["weights"], f"x + {part * count * _LINE_BYTES // 16}",
                tail=f"{adds}, {tail}", kind=kind,
            )
            for part in range(parts)
        ]  # fmt: skip
        signature = f"{name}({sums}, u64 weights, u64 x)"
        text.append(f"__device__ __forceinline__ void {signature} {{{''.join(calls)}\n}}\n")
    outputs = ", ".join([f'"+f"(sums[{number}])' for number in range(n // 2)])
    ends = "wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;"
    text.append(
        f"__device__ __forceinline__ void end_products({sums}) {{\n"
        f'  asm volatile("{ends}" : {outputs} :: "memory");\n}}\n'
    )
    return "".join(text)
