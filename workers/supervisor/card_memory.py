"""How much memory a device has, and how much of it is in use: a card's, or the host's for a CPU.

Owns the calls of nvidia-smi for both figures, the host's figures within its control group, and the
memory of a process group. Must not know whose memory it is. Workers of one device have one `key`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import trio

from config import WorkerConfig
from housekeeping.processes import PROC, text_of, tree_of
from workers.memory_room import host_room, host_size
from workers.supervisor.gpu_holders import parse_holders
from workers.supervisor.gpu_memory import MIB
from workers.supervisor.nvidia_smi import NvidiaSmi, nvidia_smi_in, selected_gpus

_QUERY_S: Final = 10.0
_ROOT: Final = Path("/")


@dataclass(frozen=True, slots=True)
class CardUse:
    """Bytes of the device: all, and those in use."""

    total_bytes: int
    used_bytes: int


@final
class CardMemory:
    """The memory of the device of one worker. `key` is the same for all workers of that device."""

    def __init__(self, config: WorkerConfig, environ: Mapping[str, str]) -> None:
        program = nvidia_smi_in(environ)
        is_card = config.device.startswith("cuda") or (
            config.engine == "native" and config.device == "auto" and program is not None
        )
        gpu = selected_gpus(config.device, environ) if is_card else None
        self._driver = NvidiaSmi(program, gpu, _QUERY_S)
        self.is_card = is_card
        self.key = "cpu" if not is_card else f"cuda-{gpu or 'all'}"

    @property
    def can_read(self) -> bool:
        """Whether there is a program that says what is in use."""
        return self._driver.program is not None or not self.is_card

    async def read(self) -> CardUse | None:
        """None if the driver does not report it: workers of the device are resident one at a time
        then.
        """
        return await trio.to_thread.run_sync(self._read, abandon_on_cancel=True)

    async def held_by(self, pid: int) -> int | None:
        """What the process and all below it hold of the device; None if that is not known: within a
        container the driver names other process ids.
        """
        return await trio.to_thread.run_sync(self._held_by, pid, abandon_on_cancel=True)

    def _held_by(self, pid: int) -> int | None:
        if not self.is_card:
            return resident_bytes(pid)
        table = self._driver.query("compute-apps=pid,process_name,used_memory")
        tree = set(tree_of(pid))
        held = [one.used_mib for one in parse_holders(table or "") if one.pid in tree]
        found = [mib for mib in held if mib is not None]
        return sum(found) * MIB if found else None

    def _read(self) -> CardUse | None:
        return self._read_card() if self.is_card else host_reading()

    def _read_card(self) -> CardUse | None:
        table = self._driver.query("gpu=memory.total,memory.used")
        return None if table is None else parse_reading(table)


def parse_reading(table: str) -> CardUse | None:
    """The sum over the lines `TOTAL, USED` in MiB; None where a card has no memory of its own."""
    total = used = 0
    for line in filter(str.strip, table.splitlines()):
        words = [word.strip() for word in line.split(",")]
        if len(words) != 2 or not all(word.isdigit() for word in words):
            return None
        total, used = total + int(words[0]) * MIB, used + int(words[1]) * MIB
    return CardUse(total, used) if total else None


def weights_bytes(model: str) -> int:
    """The size of the weights in a model's directory; 0 if it has none there."""
    return sum(path.stat().st_size for path in Path(model).glob("*.safetensors"))


def host_reading(root: Path = _ROOT) -> CardUse | None:
    """The host's memory: all, or what the control groups of this process allow; and what of it
    cannot be had, as an engine reads it at its start.
    """
    try:
        total, free = host_size(root).num_bytes, host_room(root).num_bytes
    except (OSError, ValueError):
        return None
    return CardUse(total, max(0, total - free))


def resident_bytes(pid: int) -> int:
    """The host memory that the process and all below it hold resident."""
    tables = (text_of(PROC / str(one) / "statm").split() for one in tree_of(pid))
    return sum(int(table[1]) for table in tables if table) * os.sysconf("SC_PAGE_SIZE")
