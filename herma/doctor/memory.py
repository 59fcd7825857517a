"""Checks memory: limits of GPU sharing, page cache on unified memory, control groups, shared
memory.

Owns the readings of /proc, /sys and /dev/shm that decide whether an engine finds room. The engine
itself defines the room of a control group (`workers/engine/memory`).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from config import Config
from herma.doctor.finding import Finding, Fix
from herma.doctor.host import Host
from housekeeping.processes import facts_in

CHECK: Final = "memory"
LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"

_MIB: Final = 2**20
_GIB: Final = 2**30
_NO_LIMIT: Final = 2**60
"""Version 1 of control groups says about 2**63 where there is none."""
_MARGIN_MIB: Final = 512
"""A CUDA context and the libraries' handles take 300 to 500 MiB that an engine does not count."""

_UNITS: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SMALL_SHM: Final = 64 * _MIB
"""A container's default size; NCCL takes more for two ranks."""

_LEFT_OVER: Final = re.compile(r"psm_|sem\.mp-|nccl-|vllm|torch_")
_SHM: Final = "/dev/shm"  # noqa: S108 -- looked through, never written to
_DROP: Final = Path("/proc/sys/vm/drop_caches")


def check_gpu_limits(host: Host) -> Iterator[Finding]:
    """Check limits of HAMi's kind, which drivers and runtime libraries read differently."""
    totals = [row[0] for row in host.table(*_query("memory.total"))]
    for name, value in sorted(host.environ.items()):
        if not name.startswith(LIMIT):
            continue
        match = re.fullmatch(r"(\d+)([kmgt]?)i?b?", value.strip().lower())
        if match is None:
            yield Finding(
                "error",
                CHECK,
                f"{name} = {value!r} is no size",
                "the shim and Herma refuse it, or read a limit that was not meant",
                f"export {name}=23000m, or unset {name} for no limit",
            )
        elif int(match[1]) == 0:
            yield Finding(
                "error",
                CHECK,
                f"{name} = {value!r} means 0 bytes to the driver and no limit to the runtime",
                "the first allocation fails, although nvidia-smi shows free memory",
                f"unset {name}",
            )
        else:
            index = name.removeprefix(LIMIT).lstrip("_") or "0"
            total = totals[int(index)] if index.isdigit() and int(index) < len(totals) else ""
            yield from _check_margin(name, value, int(match[1]) * _UNITS[match[2]], total)


def _check_margin(name: str, value: str, limit: int, total: str) -> Iterator[Finding]:
    if not total.isdigit():
        return
    left = int(total) - limit // _MIB
    if left < _MARGIN_MIB:
        short = f"is {-left} MiB over the card" if left < 0 else f"leaves {left} MiB of the card"
        yield Finding(
            "warning",
            CHECK,
            f"{name} = {value} ({limit // _MIB:,} MiB) {short} ({int(total):,} MiB)",
            f"contexts and libraries take up to {_MARGIN_MIB} MiB; the engine runs out of memory",
            f"export {name}={int(total) - 2 * _MARGIN_MIB}m",
        )


def check_page_cache(host: Host) -> Iterator[Finding]:
    """Check unified memory, on which the driver counts page cache as used."""
    if not any("N/A" in row[0] for row in host.table(*_query("memory.total"))):
        return
    facts = _meminfo(host)
    cached, total, free = facts["Cached"], facts["MemTotal"], facts["MemFree"]
    if total and cached > total // 4 and free < total // 2:
        yield Finding(
            "warning",
            CHECK,
            f"page cache holds {cached // _GIB} of {total // _GIB} GiB of unified memory",
            "the driver counts it as used, so other engines believe that the GPU is full",
            'sync; echo 1 > /proc/sys/vm/drop_caches (or prepare = ["drop-page-cache"])',
            Fix(write=(_DROP, "1\n")),
        )


def _meminfo(host: Host) -> dict[str, int]:
    """Bytes by name; 0 where the kernel does not report one."""
    return {"Cached": 0, "MemTotal": 0, "MemFree": 0} | facts_in(host.text("/proc/meminfo"))


def _query(what: str) -> tuple[str, ...]:
    return "nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"


def _limit(host: Host) -> int | None:
    """The memory limit of the container, by either version of control groups."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = host.text(f"/sys/fs/cgroup/{name}").strip()
        if text.isdigit() and int(text) < _NO_LIMIT:
            return int(text)
    return None


def check_control_group(host: Host, config: Config) -> Iterator[Finding]:
    """Compare the limit with the weights: a lower limit kills the engine while it loads."""
    if (limit := _limit(host)) is None:
        return
    for worker in config.workers:
        size = sum(host.size(name) for name in host.names(worker.model, "*.safetensors"))
        if size > limit:
            yield Finding(
                "error",
                CHECK,
                f"the memory limit of this container is {limit / _GIB:.1f} GiB, the weights "
                f"of worker `{worker.name}` are {size / _GIB:.1f} GiB",
                "the kernel kills the engine while it loads (exit code 137)",
                f"raise the container's limit above {size / _GIB:.0f} GiB",
            )


def check_host_caches(host: Host, config: Config) -> Iterator[Finding]:
    """Compare what the workers' host caches take together with the memory of the host."""
    sizes = {worker.name: worker.host_cache_bytes or 0 for worker in config.workers}
    asked = {name: size for name, size in sizes.items() if size}
    limit, total = _limit(host), _meminfo(host)["MemTotal"]
    room = total if limit is None else min(limit, total)
    if asked and room and sum(asked.values()) > room:
        yield Finding(
            "error",
            CHECK,
            f"cache.host of {', '.join(f'`{name}`' for name in asked)} takes "
            f"{sum(asked.values()) / _GIB:.1f} GiB, and the host has {room / _GIB:.1f} GiB",
            "a worker that asks for more than is free does not start",
            "lower cache.host, and leave the host its own memory",
        )


def check_shared_memory(host: Host) -> Iterator[Finding]:
    """Find segments that no process maps, and a mount that is too small for several ranks."""
    segments = [name for name in host.names(_SHM) if _LEFT_OVER.match(name.name)]
    mapped = _mapped(host) if segments else ""
    stale = [name for name in segments if str(name) not in mapped]
    if stale:
        size = sum(host.size(name) for name in stale)
        yield Finding(
            "warning",
            "shared memory",
            f"{len(stale)} segments ({size // _MIB} MiB) in {_SHM} belong to no process",
            "engines that died left them; the next start of several ranks may hang on them",
            'herma doctor --fix, or prepare = ["clear-shm"] for the worker',
            Fix(remove=tuple(host.path(name) for name in stale)),
        )
    size_line = re.search(r" /dev/shm tmpfs \S*size=(\d+)k", host.text("/proc/self/mounts"))
    if size_line is not None and int(size_line[1]) * 1024 <= _SMALL_SHM:
        yield Finding(
            "warning",
            "shared memory",
            f"{_SHM} has {int(size_line[1]) // 1024} MiB",
            "engines with several ranks need more and end with a bus error",
            "start the container with --shm-size 8g or --ipc=host",
        )


def _mapped(host: Host) -> str:
    """The text of all files that processes map or hold open."""
    maps = [host.text(process / "maps") for process in host.names("/proc", "[0-9]*")]
    return "\n".join(maps)
