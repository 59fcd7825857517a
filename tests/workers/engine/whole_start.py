"""An engine's life in one process, for what it compiles: start, all graphs, requests of every kind.

Prints one line of JSON: the kernels that this process found in the cache and those it compiled,
and whether a compiler ran beside it.
"""

import argparse
import json
import os
import random
from pathlib import Path

from benchmarks.drive import Drive
from config import DUMMY_PREFIX, WorkerConfig
from protocol.sampling import SamplingParams
from workers.engine import start
from workers.engine.compile import kernel_cache
from workers.engine.compile.compile_ahead import start_compiling
from workers.model_dir import dummy_dir

KINDS = (
    SamplingParams(max_tokens=6, temperature=0.0),
    SamplingParams(max_tokens=6, top_p=0.5),
    SamplingParams(max_tokens=6, presence_penalty=1.0, logprobs=2),
    SamplingParams(max_tokens=6, presence_penalty=1.0, top_k=5),
)
LENGTHS = (1, 20, 60, 130, 300, 1500)


def _few_layers(room: Path) -> Path:
    """A directory with a shape of two layers: their kernels are those of all."""
    directory = room / "shape"
    directory.mkdir(exist_ok=True)
    shape = json.loads((dummy_dir(f"{DUMMY_PREFIX}qwen3-0.6b") / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**shape, "num_hidden_layers": 2}))
    return directory


def main() -> None:
    """Start, serve, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--invariant", action="store_true")
    arguments = parser.parse_args()
    config = WorkerConfig(
        name="check",
        model=f"{DUMMY_PREFIX}{_few_layers(Path(os.environ[kernel_cache.CACHE_VARIABLE]))}",
        serves="check",
        gateways=(),
        token_budget=4096,
        device="cuda",
        quantization="fp8" if arguments.fp8 else "auto",
        invariant=arguments.invariant,
    )
    counts: list[kernel_cache.KernelCache] = []
    watch = kernel_cache.watch_kernel_cache

    def watched() -> kernel_cache.KernelCache:
        counts.append(watch())
        return counts[-1]

    start.watch_kernel_cache = watched
    ahead = start_compiling(config)
    runner = start.load_runner(config, lambda *_: None, ahead)
    if ahead is not None:
        ahead._listener.join()
    while runner.prepare(pending_only=False):
        pass
    rng = random.Random(1)
    drive = Drive(runner)
    for sampling in KINDS:
        for count in (1, 5, len(LENGTHS)):
            for length in LENGTHS[:count]:
                drive.submit([rng.randrange(1000) for _ in range(length)], sampling)
            drive.finish()
    (found,) = counts
    print(
        json.dumps(
            {"found": found.num_found, "compiled": found.compiled, "ahead": ahead is not None}
        )
    )


if __name__ == "__main__":
    main()
