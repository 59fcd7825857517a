"""Launches past Triton's own way give a kernel what Triton would: here, and on a card."""

# ruff: noqa: ANN001, ANN202, N803 - device code is typed by Triton

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from kernels.launch import Launch
from tests.fakes.uninterpreted import run_uninterpreted


def test_against_triton_itself(tmp_path: Path) -> None:
    """Launches are compared with Triton itself in a process of its own, where Triton compiles; see
    `launch_checks`.
    """
    run_uninterpreted("tests.kernels.launch_checks", cache=tmp_path)


@triton.jit(do_not_specialize=["count"])
def _copy_kernel(x_ptr, out_ptr, count, stride, scale, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_wait()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at.to(tl.int64) * stride, mask=at < count, other=0.0)
    tl.store(out_ptr + at, (x * scale).to(out_ptr.dtype.element_ty), mask=at < count)


def _launch(stride: int, device: torch.device) -> Launch:
    pdl = device.type == "cuda"
    constants = {"stride": stride, "scale": 2.0, "BLOCK": 64, "PDL": pdl}
    return Launch(_copy_kernel, constants, num_warps=1, launch_pdl=pdl)


@pytest.mark.parametrize("stride", [1, 3, 16])
def test_any_alignment_size_and_dtype(stride: int, device: torch.device) -> None:
    """One launch object serves any alignment, size and dtype, each twice, in any order."""
    launch = _launch(stride, device)
    for count in (1, 16, 17, 200, 1, 16):
        for offset in (0, 1, 4, 0):
            for dtype in (torch.float32, torch.float16):
                x = torch.randn(offset + count * stride, device=device).to(dtype)[offset:]
                out = torch.full((count,), torch.nan, device=device, dtype=dtype)
                launch((-(-count // 64), 1, 1), (x, out), (count,))
                assert torch.equal(out, (x[::stride][:count] * 2.0))


@pytest.mark.gpu
def test_the_current_stream_and_graphs() -> None:
    """Ordered behind what the current stream has queued; captured where that one captures."""
    device = torch.device("cuda")
    launch = _launch(1, device)
    x, out = torch.ones(1000, device=device), torch.zeros(1000, device=device)
    launch((16, 1, 1), (x, out), (1000,))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.fill_(3.0)
        launch((16, 1, 1), (x, out), (1000,))
        copy = out.clone()
    side.synchronize()
    assert bool((copy == 6.0).all())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch((16, 1, 1), (x, out), (1000,))
    x.fill_(5.0)
    assert bool((out == 6.0).all())
    graph.replay()
    assert bool((out == 10.0).all())


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_two_devices() -> None:
    """One launch object serves both, each while it is the current one."""
    launch = _launch(1, torch.device("cuda"))
    for index in (0, 1, 0, 1):
        with torch.cuda.device(index):
            x = torch.ones(64, device="cuda")
            out = torch.zeros_like(x)
            launch((1, 1, 1), (x, out), (64,))
            assert bool((out == 2.0).all())
    x = torch.ones(64, device="cuda:1")
    fresh = _launch(1, torch.device("cuda"))
    with pytest.raises(ValueError, match="current"):
        fresh((1, 1, 1), (x, x), (64,))
