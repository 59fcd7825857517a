"""Checks of `kernels.launch` against Triton itself, on a card that only notes launches.

Run as a program, without the interpreter: the test's own process has Triton interpret. Every check
launches the same thing by Triton and by a `Launch`, twice each, and compares what arrived.
"""

# ruff: noqa: ANN001, ANN202, N803 - device code is typed by Triton

from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime import driver

from kernels.launch import Launch
from tests.fakes.triton_card import Launched, TritonCard


@triton.jit(do_not_specialize=["count"])
def _kernel(x_ptr, y_ptr, count, width, eps, BLOCK: tl.constexpr, PDL: tl.constexpr):
    at = tl.program_id(0) * width + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, at < count) + eps, at < count)


@triton.jit
def _specialised(x_ptr, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, at, at < count)


def _launch(width: int, **options: Any) -> Launch:
    return Launch(_kernel, {"width": width, "eps": 0.5, "BLOCK": 32, "PDL": False}, **options)


def _by_triton(x: torch.Tensor, y: torch.Tensor, count: int, width: int) -> Launched:
    _kernel[(3, 2, 1)](x, y, count, width, 0.5, BLOCK=32, PDL=False, num_warps=1, launch_pdl=True)
    return TritonCard.launched.pop()


def check_equals_triton() -> None:
    """Launches equal Triton's for all that it specialises on: dtypes, addresses, sizes of 1 and 16,
    narrow and wide.
    """
    room = torch.zeros(256)
    tensors = [room, room[1:], room[4:], room.half()[1:]]
    for width in (1, 16, 17):
        launch = _launch(width, num_warps=1, launch_pdl=True)
        for x in tensors:
            for y in tensors:
                for count in (1, 16, 17, 2**31 - 1):
                    expected = _by_triton(x, y, count, width)
                    for _ in range(2):
                        launch((3, 2, 1), (x, y), (count,))
                        assert TritonCard.launched.pop() == expected


def check_stream_and_hooks() -> None:
    """The current stream each time; with a profiler's hook Triton launches, and calls it."""
    x, launch = torch.zeros(64), _launch(32, num_warps=1)
    _kernel.run, passed = _counted(_kernel.run)
    for stream in (5, 6, 7):
        TritonCard.stream = stream
        launch((1, 1, 1), (x, x), (64,))
        assert TritonCard.launched.pop().stream == stream
    assert passed == [1]
    hook = passed.append
    knobs.runtime.launch_enter_hook.add(hook)
    launch((1, 1, 1), (x, x), (64,))
    knobs.runtime.launch_enter_hook.remove(hook)
    launch((1, 1, 1), (x, x), (64,))
    assert passed == [1, 1]


def _counted(run: Any) -> tuple[Any, list[Any]]:
    passed: list[Any] = []

    def counting(*arguments: Any, **options: Any) -> Any:
        passed.append(1)
        return run(*arguments, **options)

    return counting, passed


def check_refusals() -> None:
    """What would need another compilation, or go wrong in silence."""
    x = torch.zeros(64)
    _refused("32 bits", lambda: _launch(32)((1, 1, 1), (x, x), (2**31,)))
    _refused("specialised", lambda: Launch(_specialised, {"BLOCK": 32})((1, 1, 1), (x,), (4,)))
    _refused("last", lambda: Launch(_kernel, {"count": 1, "BLOCK": 32}))


def _refused(match: str, call: Any) -> None:
    try:
        call()
    except ValueError as error:
        assert match in str(error)
    else:
        raise AssertionError(match)


if __name__ == "__main__":
    driver.set_active(TritonCard())
    check_equals_triton()
    check_refusals()
    check_stream_and_hooks()
