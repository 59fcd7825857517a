"""`python -m benchmarks.engine.compiling SHAPE [--arch 90]`: the kernels that a start compiles;
needs no card.

Owns the measurement of each kernel of a start, in CPU seconds of a separate fork as in the engine's
compiler, and the time of a start with N processes. CPU seconds depend less on other load than
elapsed time does.
"""

import argparse
import heapq
import os
import resource
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from triton.runtime.cache import triton_key

from benchmarks.engine.run import Options, worker_config
from kernels.recorder import RecordedKernel, compile_recorded, pretend_device
from workers.engine.compile.compiler import long_ones_first
from workers.engine.compile.dry_run import dry_run
from workers.engine.compile.kernel_cache import CACHE_VARIABLE
from workers.model_dir import local_dir

_PROCESSES = (1, 2, 4, 8, 16)


class CompiledKernel(NamedTuple):
    """A kernel and its CPU seconds, including Triton's child processes."""

    kernel: RecordedKernel
    cpu_s: float


def main() -> None:
    """Print a line per kernel, then one per number of processes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.compiling")
    parser.add_argument("shape", nargs="?", default="qwen3-8b")
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--arch", type=int, default=90)
    arguments = parser.parse_args()
    config = worker_config(Options(arguments.shape, fp8=arguments.fp8, device="cuda"))
    pretend_device(arguments.arch)
    first, *rest = dry_run(config, local_dir(config.model) or Path(config.model))
    triton_key()  # once, for all forks
    with tempfile.TemporaryDirectory() as cache:
        os.environ[CACHE_VARIABLE] = cache
        found = [_compile(kernel) for kernel in first]
        later = [_compile(kernel) for kernels in rest for kernel in kernels]
    print(f"before the first answer {_sum(found)}, later {_sum(later)}")
    for processes in _PROCESSES:
        print(f"{processes:2} processes: {_segment(found, processes):.1f} s")


def _compile(kernel: RecordedKernel) -> CompiledKernel:
    before = _children_s()
    child = os.fork()
    if child == 0:
        compile_recorded(kernel, with_launcher=False)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"{kernel.name} was not compiled: status {status}")
    compiled = CompiledKernel(kernel, _children_s() - before)
    print(f"{compiled.cpu_s:5.2f} s {kernel.name}", flush=True)
    return compiled


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _sum(compiled: Sequence[CompiledKernel]) -> str:
    return f"{len(compiled)} kernels, {sum(each.cpu_s for each in compiled):.1f} s"


def _segment(compiled: Sequence[CompiledKernel], processes: int) -> float:
    """Seconds until the last kernel is done, in the order of the engine's compiler."""
    cpu_s = {each.kernel: each.cpu_s for each in compiled}
    free_at = [0.0] * processes
    for kernel in long_ones_first(list(cpu_s), processes // 2):
        heapq.heapreplace(free_at, free_at[0] + cpu_s[kernel])
    return max(free_at)


if __name__ == "__main__":
    main()
