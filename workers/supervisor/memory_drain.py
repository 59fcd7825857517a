"""Whether the memory of a dead engine is free again.

Owns that judgement and the reading of nvidia-smi's tables. Must not know processes, files or
clocks: readings and times are arguments.

A driver frees a killed process's memory after the process is gone, in a second or more for a full
card; a start into that fails for lack of memory and leaves the next one worse off. Process ids are
one-sided evidence: inside a container nvidia-smi shows none, or those of the host.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Verdict = Literal["drained", "wait", "give up"]

SLACK_BYTES: Final = 512 * 2**20
"""What other programs (a desktop, a context) may have taken since the engine's start."""

SETTLED_S: Final = 2.0
FALLING_BYTES: Final = 64 * 2**20
GIVE_UP_S: Final = 30.0
MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """`used_bytes` of the memory that the engine used, `pids` of those who hold some of it."""

    used_bytes: int
    pids: frozenset[int] = frozenset()


class DrainCheck:
    """Asked with one reading after another until it no longer says `wait`.

    Drained is memory that is back at what it was `before` the engine's start, or that has not
    fallen for two seconds while no process of ours (`own`) is listed: the rest is others'. It is
    waited for at most 30 s, because an engine that fails says more than one that never starts.
    """

    def __init__(self, before: MemoryReading | None, own: frozenset[int], now: float) -> None:
        self._before = before
        self._own = own
        self._began_at = now
        self._lowest: int | None = None
        self._fell_at = now

    def verdict(self, reading: MemoryReading, now: float) -> Verdict:
        """What to do after `reading`, taken at `now`."""
        if self._lowest is None or reading.used_bytes <= self._lowest - FALLING_BYTES:
            self._lowest, self._fell_at = reading.used_bytes, now
        before = self._before
        if before is not None and reading.used_bytes <= before.used_bytes + SLACK_BYTES:
            return "drained"
        if now - self._fell_at >= SETTLED_S and not self._own & reading.pids:
            return "drained"
        return "give up" if now - self._began_at >= GIVE_UP_S else "wait"


def selected_gpus(device: str, environ: Mapping[str, str]) -> str | None:
    """The `--id` for nvidia-smi: the one GPU of a worker whose `device` is auto, cuda or cuda:N,
    by index or uuid. None if it cannot be said (MIG): all count then.
    """
    index = int(device.partition(":")[2] or 0)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(index)
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if index < len(names) and (names[index].isdigit() or names[index].startswith("GPU-")):
        return names[index]
    return None


def parse_used(table: str) -> int | None:
    """Bytes in use from `--query-gpu=memory.used` (MiB per line), summed over the GPUs; None where
    a GPU has no memory of its own (`[N/A]`: it shares the host's) or none is listed.
    """
    values = [line.strip() for line in table.splitlines() if line.strip()]
    if not values or not all(value.isdigit() for value in values):
        return None
    return sum(map(int, values)) * MIB


def parse_pids(table: str) -> frozenset[int]:
    """Process ids from `--query-compute-apps=pid`; lines of words are none."""
    return frozenset(int(word) for word in table.split() if word.isdigit())


def parse_host_used(meminfo: str) -> int | None:
    """MemTotal - MemAvailable in bytes: reclaimable page cache is not in use."""
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    try:
        total, available = (int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (KeyError, ValueError, IndexError):
        return None
    return (total - available) * 1024
