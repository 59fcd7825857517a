"""Checks of `kernels.recorder` against real launches, on a card that only notes them.

Run as a program, without the interpreter: the test's own process has Triton interpret.
"""

# ruff: noqa: ANN001, ANN202, N803 - device code is typed by Triton

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime import driver

from kernels.launch import Launch
from kernels.recorder import (
    RecordedKernel,
    compile_recorded,
    on_compile,
    pretend_device,
    record_launches,
)
from tests.fakes.triton_card import TritonCard
from tests.fakes.uninterpreted import run_checks

H200 = 90
DTYPES = (torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.float8_e4m3fn)


@triton.jit(do_not_specialize=["count"])
def _kernel(
    x_ptr, y_ptr, count, width, eps, BLOCK: tl.constexpr, DOT: tl.constexpr, PDL: tl.constexpr
):
    at = tl.program_id(0) * width + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, at < count).to(DOT)
    tl.store(y_ptr + at, (x + eps).to(y_ptr.dtype.element_ty), at < count)


def _launch(width: int) -> Launch:
    constants = {"width": width, "eps": 1e-6, "BLOCK": 32, "DOT": tl.float32, "PDL": False}
    return Launch(_kernel, constants, num_warps=2, num_stages=3, launch_pdl=True)


def _launches(device: str) -> Iterator[tuple[Launch, torch.Tensor, torch.Tensor, int]]:
    """Numbers of 1 and 16 are other kernels than 17, and so are addresses that 16 divides."""
    for width in (1, 16, 17):
        launch = _launch(width)
        for dtype in DTYPES:
            room = torch.empty(256, dtype=dtype, device=device)
            for first in (0, 1, 4, 16):
                for count in (1, 16, 17):
                    yield launch, room, room[first:], count


def _met(device: str) -> set[RecordedKernel]:
    """What Triton is about to compile for all of them."""
    with record_launches() as recorded:
        for launch, x, y, count in _launches(device):
            launch((3, 1, 1), (x, y), (count,))
    return set(recorded.values())


def check_same_kernels() -> None:
    """Tensors without memory need the kernels that tensors of the same shape need, no others."""
    driver.set_active(TritonCard())
    expected = _met("cpu")
    assert len(expected) > 3 * len(DTYPES)
    pretend_device(H200)
    assert _met("meta") == expected
    assert len({kernel.id for kernel in expected}) == len(expected)


def check_found_in_the_cache() -> None:
    """What was compiled from a note is not compiled again by the launch."""
    pretend_device(H200)
    with record_launches() as recorded:
        x = torch.empty(64, device="meta")
        _launch(17)((1, 1, 1), (x, x[1:]), (64,))
    hits: list[bool] = []
    knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
    for kernel in recorded.values():
        assert kernel.num_parameters == 8
        compile_recorded(kernel, with_launcher=False)
    driver.set_active(TritonCard())
    _kernel.device_caches.clear()
    x = torch.zeros(64)
    _launch(17)((1, 1, 1), (x, x[1:]), (64,))
    assert hits == [False, True]
    assert len(TritonCard.launched) == 1
    _launch(17)((1, 1, 1), (x, x[4:]), (64,))
    assert hits == [False, True, False]


def check_the_hook() -> None:
    """The hook sees each kernel once, before its launch, and lets Triton go on."""
    driver.set_active(TritonCard())
    seen: list[RecordedKernel] = []

    def see(kernel: RecordedKernel) -> bool:
        assert not TritonCard.launched
        seen.append(kernel)
        return False

    on_compile(see)
    x, launch = torch.zeros(64), _launch(17)
    for _ in range(3):
        launch((1, 1, 1), (x, x), (64,))
    assert [kernel.name for kernel in seen] == ["_kernel"]
    assert len(TritonCard.launched) == 3


if __name__ == "__main__":
    run_checks(globals())
