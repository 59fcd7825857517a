"""The machine that a figure was measured on, as printed beside every table."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "trio", "pyzmq", "tokenizers")


def describe_machine(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """CPU, memory, operating system and the versions of `packages`."""
    return {
        "cpu": f"{_cpu_model()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "packages": ", ".join(f"{name} {version(name)}" for name in packages),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown CPU"
