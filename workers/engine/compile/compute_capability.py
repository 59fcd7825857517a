"""The compute capability of the card, before torch is imported.

Owns three calls of NVIDIA's driver, which make no context and take no memory. torch repeats the
first of them at no cost. Must not import torch.
"""

import ctypes
import re
from typing import Final

LIBRARY: Final = "libcuda.so.1"

_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR."""

_NAME: Final = re.compile(r"(?:auto|cuda(?::(\d+))?)")


def compute_capability(device: str) -> int | None:
    """Ten times the compute capability of a worker's `device`: 90 for an H200. None if the
    device is not an NVIDIA card.
    """
    name = _NAME.fullmatch(device)
    if name is None:
        return None
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    card = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(card), int(name[1] or 0)):
        return None
    parts = []
    for attribute in (_MAJOR, _MINOR):
        part = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(part), attribute, card):
            return None
        parts.append(part.value)
    return 10 * parts[0] + parts[1]
