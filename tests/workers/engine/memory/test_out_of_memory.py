"""Whose memory ran out: a card's or the host's."""

import pytest
import torch

from workers.engine.memory.host_pool import HostPool
from workers.engine.memory.out_of_memory import is_of_host, is_out_of_memory, shortage
from workers.memory_room import MemoryRoom


@pytest.mark.parametrize(
    ("error", "is_host", "line"),
    [
        (MemoryError(), True, "out of memory of the host"),
        (MemoryError("9 bytes\nof a pool"), True, "out of memory of the host: 9 bytes"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            True,
            "out of memory of the host: [enforce fail] DefaultCPUAllocator: can't allocate memory",
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), False, "CUDA out of memory. Tried"),
        (
            RuntimeError("Triton Error [CUDA]: out of memory"),
            False,
            "Triton Error [CUDA]: out of memory",
        ),
    ],
)
def test_a_shortage_names_the_memory(error: Exception, is_host: bool, line: str) -> None:
    """A shortage of the host names the memory in one line; a card's errors say so themselves."""
    assert is_out_of_memory(error)
    assert (is_of_host(error), shortage(error)) == (is_host, line)


def test_other_errors_are_no_shortage() -> None:
    """Other errors with similar words are no shortage of memory."""
    for error in (RuntimeError("a wrong shape"), ValueError("out of memory")):
        assert not is_out_of_memory(error)


def test_the_pools_own_error_is_one_of_the_host() -> None:
    """The pool's own error is one of the host's memory, and says how much was asked for and what is
    left.
    """
    pool = HostPool(100, MemoryRoom(100, "the kernel"), locks=False)
    with pytest.raises(MemoryError) as raised:
        pool.tensor((101,), torch.uint8)
    assert shortage(raised.value) == (
        "out of memory of the host: the host's memory has no room: 101 bytes are asked for, and "
        "100 of a pool of 100 are free"
    )
