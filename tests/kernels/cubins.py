"""What NVIDIA's tools say of compiled kernels."""

import re
import subprocess
from pathlib import Path
from typing import Final

import triton

TOOLS: Final = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def resources(cubin: bytes, room: Path) -> dict[str, int]:
    """A kernel's registers and bytes of local memory, by the tool's names. `room` is a folder."""
    path = room / "kernel.cubin"
    path.write_bytes(cubin)
    tool = TOOLS / "cuobjdump"
    said = subprocess.run([tool, "-res-usage", path], capture_output=True, check=True, text=True)
    return {name: int(count) for name, count in re.findall(r"([A-Z]+):(\d+)", said.stdout)}
