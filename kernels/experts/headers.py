"""What sources in CUDA C++ of experts include.

Owns the text that they share. Must not know any kernel.
"""

from pathlib import Path

from kernels.cuda import hopper


def headers(card: str) -> dict[str, str]:
    """Those of all experts' kernels, by name: `card` is the header of instructions, "hopper.h" or
    "ampere.h".
    """
    path = Path(__file__).with_name("activation.h")
    return {**hopper.header(card), path.name: path.read_text(encoding="utf-8")}
