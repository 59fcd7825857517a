"""Which segments become CUDA C++, on a card that only notes what would be launched.

Run as a program, without the interpreter: the test's own process has Triton interpret.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import torch

from kernels.attention import ExtendSegment, PagedPlan, attend, extend_attention, prepared
from kernels.recorder import pretend_device, record_launches
from tests.fakes.uninterpreted import run_checks
from tests.kernels.attention_cases import EPS, Shape

H200, A100, BLACKWELL = 90, 80, 100
META = torch.device("meta")
QWEN3 = Shape(heads=32, kv=8, dim=128, block_size=32, dtype=torch.bfloat16)
SEGMENT = ExtendSegment(first_row=0, num_rows=40, start=70, table_row=0)


def attend_alone(shape: Shape, segment: ExtendSegment = SEGMENT) -> None:
    """A segment behind a past, as a layer of a step has it, on a pretended device."""

    def empty(*sizes: int, dtype: torch.dtype = shape.dtype) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device=META)

    cache = partial(empty, 9, shape.block_size, shape.kv, shape.dim)
    keys, values = (cache(dtype=shape.cache_dtype or shape.dtype) for _ in range(2))
    numbers = empty(segment.num_rows, dtype=torch.int32)
    plan = PagedPlan(numbers, numbers, empty(1, 9, dtype=torch.int32), 0, (segment,))
    plan = prepared(plan, shape.heads, keys, shape.dtype)
    qkv = empty(segment.num_rows, (shape.heads + 2 * shape.kv) * shape.dim)
    norm = empty(shape.heads + shape.kv, shape.dim)
    angles = empty(256, shape.dim, dtype=torch.float32)
    attend(qkv, norm, EPS, angles, keys, values, plan)


def _two_layers(shape: Shape) -> None:
    attend_alone(shape)
    attend_alone(shape)


def _recorded(step: Callable[[], None]) -> list[str]:
    with record_launches() as recorded:
        step()
    return [
        kernel.name for kernel in recorded.values() if kernel.module == extend_attention.__name__
    ]


def check_shapes() -> None:
    """bfloat16 of 128 columns, in blocks that make up a tile; once for the same heads."""
    pretend_device(H200)
    for heads, block_size in ((32, 32), (16, 16), (40, 128), (8, 64)):
        fitting = replace(QWEN3, heads=heads, block_size=block_size)
        assert _recorded(partial(_two_layers, fitting)) == ["attend_items"]
    for other in (
        replace(QWEN3, block_size=8),
        replace(QWEN3, block_size=256),
        replace(QWEN3, dim=64),
        replace(QWEN3, dtype=torch.float16),
        replace(QWEN3, cache_dtype=torch.float8_e4m3fn),
    ):
        assert not _recorded(partial(attend_alone, other)), other


def check_ampere() -> None:
    """An Ampere card has no such tensor cores, so no segment becomes CUDA C++."""
    pretend_device(A100)
    assert not _recorded(partial(attend_alone, QWEN3))


def check_blackwell() -> None:
    """A Blackwell card has other tensor cores, so no segment becomes CUDA C++. A process knows one
    card: what serves it is asked for once.
    """
    pretend_device(BLACKWELL)
    assert not _recorded(partial(attend_alone, QWEN3))


def check_compiler() -> None:
    """Without one, Triton serves them."""
    pretend_device(H200)
    with patch("kernels.cuda.hopper.has_compiler", lambda: False):
        assert not _recorded(partial(attend_alone, QWEN3))


if __name__ == "__main__":
    with patch("kernels.cuda.hopper.has_compiler", lambda: True):
        run_checks(globals())
