"""Memory of a card behind fixed addresses, by the driver's virtual memory.

Owns the driver's calls (cuMemAddressReserve, cuMemCreate, cuMemMap, cuMemSetAccess, cuMemUnmap,
cuMemRelease) and of its memory for kernels' stacks (cuCtxSetLimit), through ctypes. Must not know
what is kept there. A captured CUDA graph names addresses alone, so it stays valid while other
memory comes behind them.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, final

import torch
from torch import Tensor

from workers.engine.sleep.pages import NoMemoryError

_LIBRARY: Final = "libcuda.so.1"
_PINNED: Final = 1
_ON_DEVICE: Final = 1
_READ_AND_WRITE: Final = 3
_STACK_SIZE: Final = 0
"""CU_LIMIT_STACK_SIZE."""
_SMALL_STACK: Final = 16
_OUT_OF_MEMORY: Final = 2
_CALLS: Final = (
    "cuMemGetAllocationGranularity",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
)


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp; its last eight bytes are flags, of which zeros are the defaults."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class DriverRefusalError(RuntimeError):
    """The driver cannot do it; the text names the call."""


class _Memory:
    """Memory at an address, by Numba's array interface. Its tensors keep this object."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (num_bytes,),
            "typestr": "|u1",
            "version": 2,
        }


@final
class CardPages:
    """The memory of `device`, whose context must be the current one. Raises `DriverRefusalError` if
    this driver has no virtual memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        try:
            self._cuda = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise DriverRefusalError(f"there is no CUDA driver here ({error})") from error
        if lacking := [name for name in _CALLS if not hasattr(self._cuda, name)]:
            raise DriverRefusalError(f"the driver has no {lacking[0]}")
        self._location = _Location(_ON_DEVICE, device.index or 0)
        self._properties = _Properties(_PINNED, 0, self._location, None, 0)
        self._access = _Access(self._location, _READ_AND_WRITE)
        self._handles: dict[int, ctypes.c_uint64] = {}
        found = ctypes.c_size_t()
        self._call(
            "cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(self._properties), 1
        )
        self.granularity = found.value
        self._call("cuCtxGetLimit", ctypes.byref(found), _STACK_SIZE)
        self._stack_size = found.value

    def __repr__(self) -> str:
        return f"<CardPages of {self._device}, {len(self._handles)} mapped>"

    def reserve(self, num_bytes: int) -> int:
        """See `Pages`."""
        found, none = ctypes.c_uint64(), ctypes.c_uint64(0)
        size, aligned = ctypes.c_size_t(num_bytes), ctypes.c_size_t(0)
        self._call("cuMemAddressReserve", ctypes.byref(found), size, aligned, none, none)
        return found.value

    def take(self, address: int, num_bytes: int) -> None:
        """See `Pages`."""
        handle, size = ctypes.c_uint64(), ctypes.c_size_t(num_bytes)
        place, zero = ctypes.c_uint64(address), ctypes.c_uint64(0)
        kind = ctypes.byref(self._properties)
        self._call("cuMemCreate", ctypes.byref(handle), size, kind, zero)
        try:
            self._call("cuMemMap", place, size, ctypes.c_size_t(0), handle, zero)
        except (DriverRefusalError, NoMemoryError):
            self._call("cuMemRelease", handle)
            raise
        self._handles[address] = handle
        access, count = ctypes.byref(self._access), ctypes.c_size_t(1)
        try:
            self._call("cuMemSetAccess", place, size, access, count)
        except (DriverRefusalError, NoMemoryError):
            self.give_back(address, num_bytes)
            raise

    def give_back(self, address: int, num_bytes: int) -> None:
        """See `Pages`."""
        self._call("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(num_bytes))
        self._call("cuMemRelease", self._handles.pop(address))

    def let_stacks_go(self) -> None:
        """See `Pages`. The driver keeps memory for the stacks of as many threads as the card runs
        at once, 132 MiB on an H200 for each half KiB. One that refuses keeps it, at no harm.
        """
        self._cuda.cuCtxSetLimit(_STACK_SIZE, ctypes.c_size_t(_SMALL_STACK))

    def take_stacks(self) -> None:
        """See `Pages`."""
        try:
            self._call("cuCtxSetLimit", _STACK_SIZE, ctypes.c_size_t(self._stack_size))
        except NoMemoryError:
            self.let_stacks_go()
            raise

    def bytes_at(self, address: int, num_bytes: int) -> Tensor:
        """See `Pages`."""
        return torch.as_tensor(_Memory(address, num_bytes), device=self._device)

    def _call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        code = int(getattr(self._cuda, name)(*arguments))
        if code == _OUT_OF_MEMORY:
            raise NoMemoryError(f"{name}: the card has no memory left")
        if code:
            raise DriverRefusalError(f"{name} failed (CUDA error {code})")
