"""How much memory a device has, and how much of it is in use: a card's, or the host's for a CPU.

Owns the calls of nvidia-smi for both figures, the host's figures within its control group, and the
memory of a process group. Must not know whose memory it is. Workers of one device have one `key`.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import trio

from config import WorkerConfig
from workers.supervisor.gpu_holders import parse_holders
from workers.supervisor.gpu_memory import MIB, output_of, selected_gpus

_QUERY_S: Final = 10.0
_PROC: Final = Path("/proc")
_CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class CardUse:
    """Bytes of the device: all, and those in use."""

    total_bytes: int
    used_bytes: int


@final
class CardMemory:
    """The memory of the device of one worker. `key` is the same for all workers of that device."""

    def __init__(self, config: WorkerConfig, environ: Mapping[str, str]) -> None:
        self._program = shutil.which("nvidia-smi", path=environ.get("PATH"))
        is_card = config.device.startswith("cuda") or (
            config.engine == "native" and config.device == "auto" and self._program is not None
        )
        self._gpu = selected_gpus(config.device, environ) if is_card else None
        self.is_card = is_card
        self.key = "cpu" if not is_card else f"cuda-{self._gpu or 'all'}"

    @property
    def can_read(self) -> bool:
        """Whether there is a program that says what is in use."""
        return self._program is not None or not self.is_card

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
        table = self._query("compute-apps=pid,process_name,used_memory")
        tree = set(tree_of(pid))
        held = [one.used_mib for one in parse_holders(table or "") if one.pid in tree]
        found = [mib for mib in held if mib is not None]
        return sum(found) * MIB if found else None

    def _read(self) -> CardUse | None:
        return self._read_card() if self.is_card else host_reading()

    def _read_card(self) -> CardUse | None:
        table = self._query("gpu=memory.total,memory.used")
        return None if table is None else parse_reading(table)

    def _query(self, what: str) -> str | None:
        if self._program is None:
            return None
        argv = [self._program, f"--query-{what}", "--format=csv,noheader,nounits"]
        if self._gpu is not None:
            argv.append(f"--id={self._gpu}")
        return output_of(argv, _QUERY_S)


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


def host_reading() -> CardUse | None:
    """The host's memory: all, or the limit of this control group; and what of it cannot be had."""
    fields: dict[str, int] = {}
    with suppress(OSError, ValueError):
        for line in (_PROC / "meminfo").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            fields[name] = int(value.split()[0]) * 1024
    if "MemTotal" not in fields or "MemAvailable" not in fields:
        return None
    total, free = fields["MemTotal"], fields["MemAvailable"]
    with suppress(OSError, ValueError):  # no control group, or "max"
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        total, free = min(total, limit), min(free, max(0, limit - used))
    return CardUse(total, max(0, total - free))


def tree_of(pid: int, proc: Path = _PROC) -> list[int]:
    """The process and all below it, parents first."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents(proc):
        children.setdefault(parent, []).append(child)
    found = [pid]
    for one in found:
        found += children.get(one, ())
    return found


def resident_bytes(pid: int, proc: Path = _PROC) -> int:
    """The host memory that the process and all below it hold resident."""
    total = 0
    for one in tree_of(pid, proc):
        with suppress(OSError, ValueError, IndexError):
            pages = int((proc / str(one) / "statm").read_text(encoding="ascii").split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
    return total


def _parents(proc: Path) -> Iterator[tuple[int, int]]:
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
                yield int(folder.name), int(stat.rpartition(")")[2].split()[1])
