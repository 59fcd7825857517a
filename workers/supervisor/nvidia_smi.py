"""Asks the driver by nvidia-smi.

Owns which cards a worker's `device` means to the driver, and the call of the program. A separate
process asks the driver: a hanging driver call would block the supervisor. Must not know what is
asked, or for what.
"""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple


def selected_cards(devices: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Like `selected_gpus`, for all cards of a worker: nvidia-smi takes several."""
    found = [selected_gpus(device, environ) for device in devices]
    known = [each for each in found if each is not None]
    return ",".join(known) if len(known) == len(found) else None


def selected_gpus(device: str, environ: Mapping[str, str]) -> str | None:
    """The `--id` for nvidia-smi: the one GPU of a worker whose `device` is auto, cuda or cuda:N, by
    index or uuid. None if it is unknown (MIG): then all GPUs count.
    """
    index = int(device.partition(":")[2] or 0)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(index)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if index < len(names) and (names[index].isdigit() or names[index].startswith("GPU-")):
        return names[index]
    return None


def nvidia_smi_in(environ: Mapping[str, str]) -> str | None:
    """The program on the search path of `environ`."""
    return shutil.which("nvidia-smi", path=environ.get("PATH"))


class NvidiaSmi(NamedTuple):
    """The program, None if there is none, and the cards that it is asked about, None for all. An
    answer takes at most `longest_s`.
    """

    program: str | None
    gpu: str | None
    longest_s: float

    def query(self, what: str) -> str | None:
        """The table for `--query-WHAT`; None if the driver does not answer. Blocks."""
        if self.program is None:
            return None
        argv = [self.program, f"--query-{what}", "--format=csv,noheader,nounits"]
        if self.gpu is not None:
            argv.append(f"--id={self.gpu}")
        return output_of(argv, self.longest_s)


def output_of(argv: list[str], seconds: float) -> str | None:
    """The program's output; None if it fails or takes more than `seconds`."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout.decode(errors="replace")
    return None
