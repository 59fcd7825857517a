"""`python -m workers.engine.compile.compiler --arch 90 --parent PID`: compiles an engine's
kernels ahead.

Owns the process beside an engine that makes a dry run of its start (`dry_run.py`) and compiles the
recorded kernels, in forks of itself, into Triton's cache. It reads the configuration, and for a
model of the hub its directory, from stdin; it reports each kernel on stdout. It ends when all are
done, or with its engine. The kernels that the engine needs before its first answer come first, then
with low priority those of graphs that are captured later. Must not touch the card.
"""

# ruff: noqa: PLC0415 -- torch takes seconds: Triton is hashed meanwhile

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from ctypes import CDLL
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from setproctitle import setproctitle

from config import WorkerConfig
from housekeeping.signals import die_with_parent
from workers.engine.compile.compiler_messages import CompilerMessage, Listed, Ready, encode_line
from workers.engine.compile.compute_capability import LIBRARY
from workers.engine.compile.kernel_cache import (
    Extent,
    hash_compiler,
    is_complete,
    mark_complete,
    watch_kernel_cache,
)

if TYPE_CHECKING:
    from kernels.recorder import RecordedKernel

MOST_PROCESSES: Final = 8
"""The 37 kernels of Qwen3-8B take 22 s of a processor, three of them 3 s each. Eight processes are
done together with these three, so more would not be done sooner.
"""

_LOW_PRIORITY: Final = 10

_SWITCH_S: Final = 1e-4


def main(argv: list[str] | None = None) -> int:
    """Compile an engine's kernels. The exit status is 0 if all are in the cache; errors are on
    stderr.
    """
    arguments = _parse(argv)
    setproctitle("herma compiler")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine decides when to leave
    die_with_parent(arguments.parent, signal.SIGKILL)
    # The output of libraries must not reach the engine.
    words = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(message: CompilerMessage) -> None:
        words.write(encode_line(message))

    return _compile_all(arguments.arch, say)


def _compile_all(arch: int, say: Callable[[CompilerMessage], None]) -> int:
    # The hash runs while torch is imported. It needs the interpreter's lock for each MB, which it
    # would get only after 5 ms by default.
    sys.setswitchinterval(_SWITCH_S)
    hashed = hash_compiler()
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerConfig)
    first, later = _dry_run(config, arch)
    if is_complete(config, arch, Extent.FIRST):
        first = []  # the first kernels are in the cache
    hashed.join()
    processes = min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
    say(Listed(tuple([kernel.id for kernel in (*first, *later)]), processes))
    ordered = long_ones_first(first, processes // 2)
    # The first submission makes all forks, which inherit what is imported and hashed by now.
    begin = (os.getpid(),)
    with ProcessPoolExecutor(processes, get_context("fork"), _begin, begin) as pool:
        driver = pool.submit(_compile_driver)
        needed = {pool.submit(_compile, kernel): kernel for kernel in ordered}
        others = {pool.submit(_compile_later, kernel): kernel for kernel in later}
        is_right = _report(needed, say)
        if is_right:
            # Marked before the others: if the engine ends soon, its next start need not wait.
            mark_complete(config, arch, Extent.FIRST)
        is_right = _report(others, say) and is_right
        driver.result()
    if not is_right:
        return 1
    mark_complete(config, arch)
    return 0


def _report(
    answers: "dict[Future[Ready], RecordedKernel]", say: Callable[[CompilerMessage], None]
) -> bool:
    """Report each kernel when it is done. Returns whether all went without an error."""
    is_right = True
    for answer in as_completed(answers):
        message = _word(answer, answers[answer])
        say(message)
        is_right = is_right and not message.error
    return is_right


def _dry_run(
    config: WorkerConfig, arch: int
) -> tuple[list["RecordedKernel"], list["RecordedKernel"]]:
    """The kernels needed before the first answer, and those needed later. Raises `ConfigError`."""
    import torch
    import triton.compiler.code_generator  # noqa: F401 -- for the forks

    from kernels.recorder import pretend_device
    from workers.engine.compile.dry_run import dry_run
    from workers.model_dir import local_dir

    torch.set_num_threads(1)  # the threads of a pool do not survive a fork
    directory = local_dir(config.model)
    if directory is None:
        directory = Path(msgspec.json.decode(sys.stdin.buffer.readline(), type=str))
    pretend_device(arch)
    first, *rest = dry_run(config, directory)
    return first, [kernel for kernels in rest for kernel in kernels]


def long_ones_first(kernels: Sequence["RecordedKernel"], number: int) -> list["RecordedKernel"]:
    """The kernels in the order to compile them: first the `number` longest, then the others in the
    order of need, because the engine waits for the first of these too. Compile times are not known
    in advance; kernels with many parameters take the longest.
    """
    longest = sorted(kernels, key=lambda kernel: -kernel.num_parameters)[:number]
    return [*longest, *[kernel for kernel in kernels if kernel not in longest]]


def _word(answer: "Future[Ready]", kernel: "RecordedKernel") -> Ready:
    """The report of a kernel. A failed one counts as done: the engine meets the error itself."""
    error = answer.exception()
    if error is None:
        return answer.result()
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    return Ready(kernel.id, kernel.name, seconds=0.0, error=text)


def _begin(parent: int) -> None:
    """Run at the start of each fork."""
    die_with_parent(parent, signal.SIGKILL)


def _compile_driver() -> None:
    from kernels.recorder import compile_driver

    if _has_driver():
        compile_driver()


def _compile(kernel: "RecordedKernel") -> Ready:
    from kernels.recorder import compile_recorded

    counts = watch_kernel_cache()
    begun_at = time.perf_counter()
    compile_recorded(kernel, with_launcher=_has_driver())
    seconds = time.perf_counter() - begun_at
    return Ready(kernel.id, kernel.name, seconds, found=counts.num_compiled == 0)


def _compile_later(kernel: "RecordedKernel") -> Ready:
    os.setpriority(os.PRIO_PROCESS, 0, _LOW_PRIORITY)
    return _compile(kernel)


@cache
def _has_driver() -> bool:
    """Whether the host has NVIDIA's driver. Without it (in tests) no launcher can be linked, and
    nothing is ever launched.
    """
    try:
        CDLL(LIBRARY)
    except OSError:
        return False
    return True


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.engine.compile.compiler")
    parser.add_argument("--arch", type=int, required=True, help="ten times the card's capability")
    parser.add_argument("--parent", type=int, required=True, help="the engine's process id")
    return parser.parse_args(argv)


if __name__ == "__main__":
    status_code = main()
    # Without the interpreter's teardown: torch's takes seconds.
    os._exit(status_code)
