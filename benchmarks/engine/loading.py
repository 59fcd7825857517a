"""`python -m benchmarks.engine.loading`: how are weights brought to a card the fastest?

Writes one safetensors file, then reads it to the card by our stream in several settings and by the
library's own device loading. The file is in the page cache after the first, untimed reading; every
way is checked against the tensors that were written.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from workers.engine.checkpoint import Checkpoint
from workers.engine.file_stream import FileStream

_RUNS = 3
_ROWS = 4096


def main() -> None:
    """Print GB/s for each way."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.loading")
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--directory", type=Path, help="on the disk that matters; default: /tmp")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    num = max(1, round(arguments.gib * 2**30 / (2 * _ROWS * _ROWS)))
    shapes = {f"layer.{index}": (_ROWS, _ROWS) for index in range(num)}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
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
            checkpoint.finish(lambda: None)
        _wait(device)
        return found

    return read


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
