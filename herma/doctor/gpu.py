"""Finds foreign processes on the GPU.

Owns which processes belong to a worker of Herma: its processes and their descendants.
"""

import re
from collections.abc import Iterator
from typing import Final

from herma.doctor.finding import Finding
from herma.doctor.host import Host

CHECK: Final = "gpu"

_CONTAINER: Final = re.compile(r"(?:docker|containerd|cri|libpod|crio)[-/:.]\S*?([0-9a-f]{12})")
_APPS: Final = (
    "nvidia-smi",
    "--query-compute-apps=pid,process_name,used_memory",
    "--format=csv,noheader,nounits",
)


def check_gpu_processes(host: Host) -> Iterator[Finding]:
    """One finding for each foreign process, with its container."""
    for row in host.table(*_APPS):
        if len(row) < 3 or not row[0].isdigit() or is_ours(host, row[0]):
            continue
        pid, name, used = row[:3]
        container = _CONTAINER.search(host.text(f"/proc/{pid}/cgroup"))
        where = f" in container {container[1]}" if container else ""
        stop = f"docker stop {container[1]}" if container else f"kill {pid}"
        yield Finding(
            "warning",
            CHECK,
            f"process {pid} ({name}){where} holds {used} MiB of GPU memory",
            "a worker that starts now has that much less, or fails for lack of memory",
            f"{stop}, if it should not run",
        )


def is_ours(host: Host, pid: str) -> bool:
    """Whether the process or one of its ancestors is a Herma process."""
    seen: set[str] = set()
    while pid not in ("0", "1", "") and pid not in seen:
        seen.add(pid)
        command = host.text(f"/proc/{pid}/cmdline").replace("\0", " ")
        if command.startswith("herma ") or "-m herma" in command or "bin/herma" in command:
            return True
        parent = re.search(r"^PPid:\s*(\d+)", host.text(f"/proc/{pid}/status"), re.MULTILINE)
        pid = parent[1] if parent else ""
    return False
