"""The host's memory of an engine: an explicit size, of which nothing is given twice."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from workers.engine.memory import host_pool, locked_pages
from workers.engine.memory.host_pool import ALIGNMENT, HostPool
from workers.memory_room import MemoryRoom

ROOM = MemoryRoom(2**30, "the kernel")
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.uint8])


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=3).map(tuple), DTYPES)))
def test_no_byte_is_given_twice(wanted: list[tuple[tuple[int, ...], torch.dtype]]) -> None:
    """No byte is given twice, in any order of requests until the pool is full; taken memory keeps
    its content.
    """
    pool, taken = HostPool(4096, ROOM, locks=False), []
    for number, (shape, dtype) in enumerate(wanted):
        before = pool.num_free
        try:
            tensor = pool.tensor(shape, dtype)
        except MemoryError:
            assert pool.num_free == before
            continue
        assert (tensor.shape, tensor.dtype) == (torch.Size(shape), dtype)
        assert 0 <= before - pool.num_free - tensor.nbytes < ALIGNMENT
        taken.append((tensor.fill_(number % 100), number % 100))
    assert pool.num_free >= 0
    for tensor, content in taken:
        assert bool((tensor == content).all())


@given(st.integers(1, 300), st.integers(1, 70), DTYPES)
def test_a_pool_of_a_tensors_bytes_holds_it(rows: int, columns: int, dtype: torch.dtype) -> None:
    """A pool of a tensor's bytes holds it, whatever its size, and nothing more; the error names the
    host.
    """
    kept = torch.full((rows, columns), 3, dtype=dtype)
    pool = HostPool(kept.nbytes, ROOM, locks=False)
    assert bool((pool.tensor((rows, columns), dtype).copy_(kept) == 3).all())
    assert pool.num_free == 0
    with pytest.raises(MemoryError, match=f"the host's memory has no room: {dtype.itemsize} bytes"):
        pool.tensor((1,), dtype)


def test_a_host_that_maps_no_more_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that maps no more, as under a limit of a process's address space, is named."""

    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(host_pool, "mmap", refuse)
    with pytest.raises(ConfigError, match=r"^host_bytes needs 5 KiB, but the host gives no"):
        HostPool(5000, ROOM, locks=False)


def test_more_than_the_host_has_is_refused() -> None:
    """More than the host has is refused before anything is taken, in one line."""
    with pytest.raises(ConfigError, match=r"host_bytes needs 1\.00 GiB, but the kernel lea"):
        HostPool(2**30 + 1, ROOM, locks=False)
    with pytest.raises(ConfigError, match=r'^embedding = "host" needs 1\.00 GiB, '):
        HostPool(2**30 + 1, ROOM, locks=False, asked='embedding = "host"')


class Driver:
    """What CUDA is asked for."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []

    def cudaHostRegister(self, at: int, num_bytes: int, _flags: int) -> int:  # noqa: N802 - CUDA's
        self.done.append(("lock", num_bytes))
        assert at % 4096 == 0
        return 0

    def cudaHostUnregister(self, at: int) -> int:  # noqa: N802 - CUDA's
        self.done.append(("unlock", at))
        return 0

    def synchronize(self) -> None:
        self.done.append(("wait", 0))


@pytest.fixture(name="driver")
def _driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(locked_pages, "_cudart", lambda: driver)
    monkeypatch.setattr(torch.cuda, "synchronize", driver.synchronize)
    return driver


def test_memory_is_locked_as_long_as_a_tensor_lies_there(driver: Driver) -> None:
    """Memory stays locked as long as a tensor lies there, even if the pool is dropped. It is
    unlocked once, when the last tensor is freed, after all copies and before its addresses are
    given back.
    """
    pool = HostPool(5000, ROOM, locks=True)
    first, second = pool.tensor((30,), torch.float32), pool.tensor((8,), torch.uint8)
    at = first.data_ptr()
    del pool
    part = second[2:5]
    del first, second
    gc.collect()
    assert driver.done == [("lock", 5000)]
    part.fill_(7)
    del part
    assert driver.done == [("lock", 5000), ("wait", 0), ("unlock", at)]


def test_memory_that_is_unlocked_is_so_once(driver: Driver) -> None:
    """A pool may be closed before its tensors end, and twice."""
    pool = HostPool(4096, ROOM, locks=True)
    kept = pool.tensor((4096,), torch.uint8)
    pool.close()
    kept.fill_(3)
    pool.close()
    del pool, kept
    assert [what for what, _ in driver.done] == ["lock", "wait", "unlock"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_card_copies_to_and_from_it_in_order() -> None:
    """A card copies to and from the pool in order, without the host waiting in between; the memory
    is exactly as large as was asked for.
    """
    kept = HostPool(3 * 2**20, ROOM, locks=True).tensor((2**19,), torch.float32)
    assert kept.is_pinned(), "torch asks for the first byte of a region, which is locked"
    found = torch.zeros(2**19, device="cuda")
    for number in range(20):
        kept.copy_(torch.full((2**19,), float(number), device="cuda"), non_blocking=True)
        found += kept.to("cuda", non_blocking=True)
    assert bool((found == sum(range(20))).all())
