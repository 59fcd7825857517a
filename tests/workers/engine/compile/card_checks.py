"""Compiles all kernels of a worker for a card that is not there: with an `arch` such as 120.

Run as a program, without the interpreter: `card_checks ARCH MODEL [KEY=VALUE ...]`. Prints one JSON
object: how many were compiled, the most shared memory of one in bytes, and the errors.
"""

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from typing import Any

from config import WorkerConfig
from kernels.recorder import RecordedKernel, pretend_device
from workers.engine.compile.dry_run import dry_run
from workers.model_dir import local_dir


def compiled(kernel: RecordedKernel) -> tuple[str, int, str]:
    """The kernel's name, its shared memory, and the error if there was one."""
    function: Any = getattr(import_module(kernel.module), kernel.name)
    try:
        found = function.preload(kernel.specialisation)
    except Exception as error:  # noqa: BLE001 - whatever Triton raises is reported
        return kernel.name, 0, f"{kernel.name}: {type(error).__name__}: {error}"[:300]
    # Shared memory of a kernel in CUDA C++ is given at its launch.
    return kernel.name, 0 if found is None else int(found.metadata.shared), ""


def main() -> None:
    """Two layers of the model's true sizes, steps of all kinds."""
    arch, model, *settings = sys.argv[1:]
    keys: dict[str, Any] = dict(setting.split("=") for setting in settings)
    directory = local_dir(model)
    assert directory is not None
    worker = WorkerConfig(
        "check", str(directory), "check", (), token_budget=2048, device="cuda", **keys
    )
    pretend_device(int(arch))
    kernels = [kernel for kernels in dry_run(worker, directory) for kernel in kernels]
    processes = min(8, len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        found = list(pool.map(compiled, kernels))
    errors = [error for *_, error in found if error]
    most = max(shared for _, shared, _ in found)
    print(json.dumps({"count": len(found), "most_bytes": most, "errors": errors}))


if __name__ == "__main__":
    main()
