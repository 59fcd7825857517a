"""In tests a kernel that reads or writes outside of its tensors is found out, and a kernel is the
code that was imported.
"""

# ruff: noqa: ANN001, ANN202, N803 - device code is typed by Triton

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from kernels.launch import Launch
from tests.fakes.quick_interpreter import keep_sources

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def kernel(to_ptr):
    tl.store(to_ptr, 7)
"""


@triton.jit
def _shift_kernel(from_ptr, to_ptr, NUM: tl.constexpr, READ: tl.constexpr, WRITTEN: tl.constexpr):
    at = tl.arange(0, NUM)
    found = tl.load(from_ptr + at + READ, at < NUM - 1, 0.0)
    tl.store(to_ptr + at + WRITTEN, found, at < NUM - 1)


def _shift(device: torch.device, read: int, written: int) -> torch.Tensor:
    given, out = torch.arange(8.0, device=device), torch.zeros(8, device=device)
    Launch(_shift_kernel, {"NUM": 8, "READ": read, "WRITTEN": written})((1, 1, 1), (given, out))
    return out


@pytest.mark.parametrize(("read", "written"), [(2, 0), (-1, 0), (0, 2), (0, -1)])
def test_a_row_too_far(device: torch.device, read: int, written: int) -> None:
    """One number ahead of a tensor or behind it, read or written."""
    if device.type != "cpu":
        pytest.skip("a card reads what lies there")
    with pytest.raises(InterpreterError, match="OutOfBoundsError"):
        _shift(device, read, written)


def test_what_is_masked_may_lie_anywhere(device: torch.device) -> None:
    """The last one is behind the tensor, and neither read nor written."""
    assert _shift(device, 1, 1).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def test_a_kernel_is_what_was_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its file changes before the first launch: Triton's interpreter reads it only then."""
    path = tmp_path / "a_changed_file.py"
    path.write_text(KERNEL)
    monkeypatch.syspath_prepend(tmp_path)
    kernel = import_module(path.stem).kernel
    keep_sources(path.stem)
    path.write_text(f"# A line more.\n{KERNEL.replace('7', '8')}")
    out = torch.zeros(1)
    kernel[(1,)](out)
    del sys.modules[path.stem]
    assert out.tolist() == [7.0]
