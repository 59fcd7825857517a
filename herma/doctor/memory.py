"""Checks memory: limits of GPU sharing, page cache on unified memory, control groups, shared
memory.

Owns the readings of /proc and /dev/shm that decide whether an engine finds room. What a control
group allows is read as engines read it (`workers/memory_room.py`).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from config import Config
from herma.doctor.finding import Finding, Fix
from herma.doctor.host import Host
from housekeeping.processes import facts_in
from housekeeping.sizes import bytes_text
from workers.engine.memory.budget import LIMIT_VARIABLE, limit_bytes
from workers.memory_room import group_limit

CHECK: Final = "memory"

_MIB: Final = 2**20
_GIB: Final = 2**30
_MARGIN_MIB: Final = 512
"""Room beside an engine's own count: a CUDA context and the libraries' handles take 300 to 500
MiB.
"""

_SMALL_SHM: Final = 64 * _MIB
"""The default size of /dev/shm in a container. NCCL takes more for two ranks."""

_LEFT_OVER: Final = re.compile(r"psm_|sem\.mp-|nccl-|vllm|torch_")
_SHM: Final = "/dev/shm"  # noqa: S108 -- looked through, never written to
_DROP: Final = Path("/proc/sys/vm/drop_caches")


_HUGE_PAGES: Final = "/sys/kernel/mm/transparent_hugepage/enabled"


def check_huge_pages(host: Host, config: Config) -> Iterator[Finding]:
    """Check whether the memory into which the driver moves a sleeping engine has huge pages."""
    sleepers = [
        one.name
        for one in config.workers
        if one.residency == "on-demand" and one.launch is not None and one.device != "cpu"
    ]
    found = re.search(r"\[(\w+)\]", host.text(_HUGE_PAGES))
    if sleepers and found is not None and found[1] != "always":
        yield Finding(
            "note",
            CHECK,
            f"transparent huge pages of this host are `{found[1]}`, and engines of others sleep "
            f"here ({', '.join(sleepers)})",
            "the driver's checkpoint takes its memory in pages of 4 KiB then: a sleep and a wake "
            "take about twice as long",
            f"echo always > {_HUGE_PAGES}, if it suits what else runs here; "
            "transparent_hugepage=always among the kernel's parameters lasts",
        )


def check_gpu_limits(host: Host) -> Iterator[Finding]:
    """Check limits of HAMi's kind, which drivers and runtime libraries read differently."""
    totals = [row[0] for row in host.table(*_query("memory.total"))]
    for name, value in sorted(host.environ.items()):
        if not name.startswith(LIMIT_VARIABLE):
            continue
        size = limit_bytes(value)
        if size is None:
            yield Finding(
                "error",
                CHECK,
                f"{name} = {value!r} is no size",
                "the shim and Herma refuse it, or read a limit that was not meant",
                f"export {name}=23000m, or unset {name} for no limit",
            )
        elif size == 0:
            yield Finding(
                "error",
                CHECK,
                f"{name} = {value!r} means 0 bytes to the driver and no limit to the runtime",
                "the first allocation fails, although nvidia-smi shows free memory",
                f"unset {name}",
            )
        else:
            index = name.removeprefix(LIMIT_VARIABLE).lstrip("_") or "0"
            total = totals[int(index)] if index.isdigit() and int(index) < len(totals) else ""
            yield from _check_margin(name, value, size, total)


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


def check_control_group(host: Host, config: Config) -> Iterator[Finding]:
    """Compare the limit with the weights: a lower limit kills the engine while it loads."""
    if (found := group_limit(host.root)) is None:
        return
    limit, source = found
    for worker in config.workers:
        size = sum(host.size(name) for name in host.names(worker.model, "*.safetensors"))
        if size > limit:
            yield Finding(
                "error",
                CHECK,
                f"{source} may take {bytes_text(limit)} of memory, the weights of worker "
                f"`{worker.name}` are {bytes_text(size)}",
                "the kernel kills the engine while it loads (exit code 137)",
                f"raise the memory limit of {source} above {bytes_text(size)}",
            )


def check_host_caches(host: Host, config: Config) -> Iterator[Finding]:
    """Compare what the workers' host caches take together with the memory of the host."""
    sizes = {worker.name: worker.host_cache_bytes or 0 for worker in config.workers}
    asked = {name: size for name, size in sizes.items() if size}
    limit, total = group_limit(host.root), _meminfo(host)["MemTotal"]
    room = total if limit is None else min(limit.num_bytes, total)
    if asked and room and sum(asked.values()) > room:
        yield Finding(
            "error",
            CHECK,
            f"cache.host of {', '.join(f'`{name}`' for name in asked)} takes "
            f"{bytes_text(sum(asked.values()))}, and the host has {bytes_text(room)}",
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
