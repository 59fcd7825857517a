"""Memory of the host that an engine holds beside its card's: one pool of an explicit size.

Owns the region and the count of its free bytes. On a machine with a card it is page-locked, so that
copies to and from the card go by its bus alone and in the order of its stream. Must not know what
is kept there.
"""

from ctypes import c_uint8
from math import prod
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from typing import Any, Final
from weakref import finalize

import torch
from torch import Tensor

from housekeeping.sizes import bytes_text
from protocol.errors import ConfigError
from workers.engine.memory import locked_pages
from workers.memory_room import MemoryRoom

ALIGNMENT: Final = 256
"""Bytes; a tensor begins at a multiple."""


class HostPool:
    """`num_bytes` of which tensors are taken; what is taken stays taken. Page-locked with `locks`,
    until `close` or the end of the last tensor: the pool itself may go before.
    """

    def __init__(
        self, num_bytes: int, room: MemoryRoom, *, locks: bool, asked: str = "host_bytes"
    ) -> None:
        """`asked` is the setting that wants it. Raises `ConfigError` if `room` has less, the system
        does not map so much, or the driver does not lock it.
        """
        if num_bytes > room.num_bytes:
            raise ConfigError(
                f"{asked} needs {bytes_text(num_bytes)}, but {room.source} leaves "
                f"{bytes_text(room.num_bytes)} of the host's memory: lower it or leave it out"
            )
        self.num_bytes = num_bytes
        self._next = 0
        self._unlock: finalize[..., Any] | None = None
        # Whole pages of its own: the driver locks no page twice. torch's own page-locked memory
        # comes in powers of two, up to twice what is asked for.
        try:
            pages = mmap(-1, max(PAGESIZE, num_bytes), MAP_PRIVATE | MAP_ANONYMOUS)
        except OSError as error:
            raise ConfigError(
                f"{asked} needs {bytes_text(num_bytes)}, but the host gives no such memory "
                f"({error.strerror}): lower it or leave it out, or raise the process's limit of "
                "address space (ulimit -v)"
            ) from error
        # Every tensor of the region keeps this object.
        held = (c_uint8 * max(1, num_bytes)).from_buffer(pages)
        self._region = torch.frombuffer(held, dtype=torch.uint8)
        if locks and num_bytes > 0:
            at = self._region.data_ptr()
            status = locked_pages.lock(at, num_bytes)
            if status != 0:
                raise ConfigError(
                    f"{asked} needs {bytes_text(num_bytes)}, but the driver cannot lock so much "
                    f"memory (error {status}): leave it out, or raise the limit of locked memory "
                    "(ulimit -l)"
                )
            # Neither earlier than the region's end, or its copies would stop the host, nor later:
            # what the system maps there next would be copied wrongly.
            self._unlock = finalize(held, _unlock, at)
            self._unlock.atexit = False

    def __repr__(self) -> str:
        taken = self.num_bytes - self.num_free
        return f"<HostPool of the host's memory, {taken} of {self.num_bytes} bytes taken>"

    @property
    def num_free(self) -> int:
        """Bytes that the next tensor may take."""
        return max(0, self.num_bytes - self._next)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of its own, whose content is undefined. Raises `MemoryError` without room."""
        size = prod(shape) * dtype.itemsize
        if size > self.num_free:
            raise MemoryError(
                f"the host's memory has no room: {size} bytes are asked for, and {self.num_free} "
                f"of a pool of {self.num_bytes} are free"
            )
        part = self._region[self._next : self._next + size]
        # The one place where sizes are rounded: the last tensor may end anywhere, so a pool of
        # exactly a tensor's bytes holds it.
        self._next += -(-size // ALIGNMENT) * ALIGNMENT
        return part.view(dtype).view(shape)

    def close(self) -> None:
        """Unlock the region before its tensors end. Raises `RuntimeError` if the driver refuses."""
        if self._unlock is not None:
            self._unlock()


def _unlock(at: int) -> None:
    torch.cuda.synchronize()  # copies that run still read and write the locked pages
    status = locked_pages.unlock(at)
    if status != 0:
        raise RuntimeError(f"the driver does not unlock memory at {at:#x}: error {status}")
