"""Pages of the host that the driver locks, so that a card copies them by itself.

Owns the calls. Must not know what the pages hold, nor the wording of errors: each user names the
setting to lower. All addresses and sizes are in bytes.
"""

import ctypes
from typing import Any, Final

import torch

_POPULATE_WRITE: Final = 23
"""`MADV_POPULATE_WRITE` of Linux 5.14."""


def populate(at: int, size: int) -> None:
    """Make pages resident, without the interpreter's lock. Where the kernel cannot, the driver does
    so when it locks them, and holds that lock meanwhile.
    """
    libc = ctypes.CDLL(None)
    libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(size), _POPULATE_WRITE)


def lock(at: int, size: int) -> int:
    """Lock pages for the current card. Returns the driver's error, 0 for none."""
    return int(_cudart().cudaHostRegister(at, size, 0))


def unlock(at: int) -> int:
    """Unlock pages that were locked at this address. Returns the driver's error, 0 for none."""
    return int(_cudart().cudaHostUnregister(at))


def _cudart() -> Any:  # noqa: ANN401 - torch does not type it
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
