"""`python -m benchmarks.engine.loading`: finds the fastest way to load weights onto a card.

Writes one safetensors file, then reads it to the card by our stream in several settings and by the
library's own device loading. After a first, untimed read the file is in the page cache. Every way
is compared with the written tensors.

With `--start SHAPE` it writes a whole checkpoint of that shape instead (qwen3-8b: 16.4 GB) and
measures an engine process from its start to its first answer, phase by phase: with an empty kernel
cache, then twice with the cache of the first start.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.engine.files import write_checkpoint
from benchmarks.engine.run import Options, worker_config
from benchmarks.engine.start import measure_start
from workers.engine.compile.kernel_cache import CACHE_VARIABLE
from workers.engine.load.checkpoint import Checkpoint
from workers.engine.load.file_stream import FileStream

_RUNS = 3
_ROWS = 4096


def main() -> None:
    """Print GB/s for each way."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.loading")
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--directory", type=Path, help="on the disk that matters; default: /tmp")
    parser.add_argument("--start", metavar="SHAPE", help="qwen3-8b, or a directory")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if arguments.start is not None:
        measure_starts(arguments.start, device, arguments.directory)
        return
    num = max(1, round(arguments.gib * 2**30 / (2 * _ROWS * _ROWS)))
    shapes = {f"layer.{index}": (_ROWS, _ROWS) for index in range(num)}
    with TemporaryDirectory(dir=arguments.directory) as directory:
        path = Path(directory) / "model.safetensors"
        written = {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
        save_file(written, path)
        num_bytes = path.stat().st_size
        print(f"{num} tensors, {num_bytes / 1e9:.2f} GB, to {device}")
        _measure("safetensors", num_bytes, written, lambda: _by_library(path, device))
        for threads in (1, 2, 4, 6, 8, 12):
            for mebibytes in (4, 16, 64):
                stream = _streaming(path.parent, shapes, device, threads, mebibytes)
                _measure(f"{threads:2} threads, {mebibytes:2} MiB", num_bytes, written, stream)


def measure_starts(shape: str, device: torch.device, directory: Path | None) -> None:
    """Print the phases of starts with real files, which are in the page cache from writing."""
    with TemporaryDirectory(dir=directory) as home, TemporaryDirectory() as kernels:
        # A separate process returns its memory of the card when it ends.
        with ProcessPoolExecutor(1, get_context("spawn")) as writers:
            written = writers.submit(write_checkpoint, shape, Path(home), device, torch.bfloat16)
            num_bytes = written.result()
        print(f"{shape}: {num_bytes / 1e9:.1f} GB of safetensors files in {home}", flush=True)
        config = worker_config(Options(home, device=device.type, tests=("start",)))
        config = msgspec.structs.replace(config, context_length=None)
        for number in range(1, _RUNS + 1):
            started = measure_start(config, {CACHE_VARIABLE: kernels})
            phases = ", ".join(f"{phase} {took:.2f}" for phase, took in started.phases.items())
            rate = num_bytes / started.phases["load"] / 1e9
            line = f"start {number}: {started.seconds:.2f} s ({phases}); files at {rate:.1f} GB/s"
            print(line, flush=True)


def _measure(
    name: str, num_bytes: int, written: dict[str, Tensor], read: Callable[[], dict[str, Tensor]]
) -> None:
    times_s = []
    for _ in range(_RUNS):
        started_at = time.perf_counter()
        found = read()
        times_s.append(time.perf_counter() - started_at)
    for tensor_name, tensor in found.items():
        if not torch.equal(tensor.cpu(), written[tensor_name]):
            raise RuntimeError(f"{name}: {tensor_name} differs from what was written")
    rate = num_bytes / statistics.median(times_s) / 1e9
    print(f"{name}: {rate:.1f} GB/s, {statistics.median(times_s):.3f} s", flush=True)


def _by_library(path: Path, device: torch.device) -> dict[str, Tensor]:
    with safe_open(path, framework="pt", device=str(device)) as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    _wait(device)
    return found


def _streaming(
    directory: Path,
    shapes: dict[str, tuple[int, int]],
    device: torch.device,
    threads: int,
    mebibytes: int,
) -> Callable[[], dict[str, Tensor]]:
    def read() -> dict[str, Tensor]:
        stream = FileStream(device, threads, mebibytes * 2**20)
        found = {}
        with Checkpoint(directory, stream) as checkpoint:
            for name, shape in shapes.items():
                found[name] = torch.empty(shape, dtype=torch.bfloat16, device=device)
                checkpoint.read_into(name, found[name])
            checkpoint.settle(lambda: None)
        _wait(device)
        return found

    return read


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
