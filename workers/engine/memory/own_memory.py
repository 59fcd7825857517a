"""What of a card's memory this process holds, as the driver counts it.

Owns the calls of NVIDIA's management library, which names processes by the host's numbers: within
another PID namespace they would mean other processes. Must not know torch.
"""

import ctypes
import os
from pathlib import Path
from typing import Final

LIBRARY: Final = "libnvidia-ml.so.1"

_NAMESPACE: Final = Path("/proc/self/ns/pid")
_OF_THE_HOST: Final = "pid:[4026531836]"
"""The first PID namespace of a kernel has this number."""
_UNKNOWN: Final = 2**64 - 1
_MAX_PROCESSES: Final = 1024


class _Process(ctypes.Structure):
    """`nvmlProcessInfo_t` of the calls that end in `_v3`."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def own_bytes(uuid: str, library: str = LIBRARY, namespace: Path = _NAMESPACE) -> int | None:
    """What this process holds of the card `uuid`; None if it cannot be known: in a container, under
    a driver that does not list processes, or before it holds anything.
    """
    try:
        if str(namespace.readlink()) != _OF_THE_HOST:
            return None
        nvml = ctypes.CDLL(library)
        if nvml.nvmlInit_v2():
            return None
        try:
            return _listed(nvml, uuid)
        finally:
            nvml.nvmlShutdown()
    except (OSError, AttributeError):  # no such library, or one that is too old
        return None


def _listed(nvml: ctypes.CDLL, uuid: str) -> int | None:
    card, count = ctypes.c_void_p(), ctypes.c_uint(_MAX_PROCESSES)
    rows = (_Process * _MAX_PROCESSES)()
    if nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(card)):
        return None
    if nvml.nvmlDeviceGetComputeRunningProcesses_v3(card, ctypes.byref(count), rows):
        return None
    own = [row.used_bytes for row in rows[: count.value] if row.pid == os.getpid()]
    return None if not own or _UNKNOWN in own else sum(own)
