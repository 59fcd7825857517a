"""What sources in CUDA C++ of experts include.

Owns the text that they share. Must not know any kernel.
"""

from pathlib import Path
from typing import Final

from kernels.cuda import hopper

_SHARED: Final = ("activation.h", "e2m1.h")


def headers(card: str) -> dict[str, str]:
    """Those of all experts' kernels, by name: `card` is the header of instructions, "hopper.h" or
    "ampere.h".
    """
    here = Path(__file__).parent
    shared = {name: (here / name).read_text(encoding="utf-8") for name in _SHARED}
    return {**hopper.header(card), **shared}
