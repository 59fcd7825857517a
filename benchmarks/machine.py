"""The machine that a figure was measured on, and its current speed."""

import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Final

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


_ROUNDS: Final = 400
_CHUNK: Final = {
    "id": "chatcmpl-0",
    "choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": None}] * 16,
}


def yardstick_ms() -> float:
    """CPU milliseconds of writing and reading the same JSON 400 times.

    Other programs on the same cores lengthen even CPU time (they share caches and, often, the core
    itself), so a run reports this beside its figures.
    """
    began_s = time.process_time()
    for _ in range(_ROUNDS):
        json.loads(json.dumps(_CHUNK))
    return (time.process_time() - began_s) * 1e3
