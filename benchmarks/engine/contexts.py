"""`python -m benchmarks.engine.contexts SHAPE[:MODE]`: what a decode step costs behind contexts of
several lengths.

Owns the runs: the same prompts twice, by an engine with drawn weights, so that the second time all
are cached and decode together. Must not know how a run is measured.
"""

import argparse
import sys
from functools import partial
from statistics import median

import msgspec
import torch

from benchmarks.engine.client import BenchClient, EngineRequest
from benchmarks.engine.drawn import options_of, prompt, serve
from benchmarks.engine.modes import bench_config
from benchmarks.engine.run import Options
from benchmarks.machine import describe_machine

_OUTPUTS = 128
_RUNS = 3


def main() -> None:
    """Print a row for each length."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.contexts")
    parser.add_argument("name", metavar="SHAPE[:MODE]")
    parser.add_argument("--batch", type=int, default=8, help="sequences at once; default: 8")
    parser.add_argument("--lengths", default="1024,32768", metavar="LIST", help="prompt tokens")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    lengths = tuple(map(int, arguments.lengths.split(",")))
    options = options_of(arguments.name, arguments.device, parser)
    took = measure(options, arguments.batch, lengths)
    print(f"| {options.name}, {arguments.batch} sequences behind | ms a step | times |")
    print("|---|---|---|")
    for length, step_ms in took.items():
        print(f"| {length:,} tokens | {step_ms:.2f} | {step_ms / took[lengths[0]]:.2f} |")
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{card}; {'; '.join(describe_machine(('torch', 'triton')).values())}")


def measure(options: Options, batch: int, lengths: tuple[int, ...]) -> dict[int, float]:
    """Milliseconds of a step by length: the median of some answers of `batch` sequences."""
    longest = max(lengths) + 2 * _OUTPUTS
    config = msgspec.structs.replace(
        bench_config(options), kv_tokens=(batch + 1) * longest, max_context=longest
    )
    found: dict[int, float] = {}

    def act(client: BenchClient) -> None:
        for length in lengths:
            run = partial(_step_ms, client, batch, length)
            run()
            found[length] = median(run() for _ in range(_RUNS))
            print(f"  {length} tokens: {found[length]:.2f} ms", file=sys.stderr, flush=True)

    serve(config, act)
    return found


def _step_ms(client: BenchClient, batch: int, length: int) -> float:
    asked = [EngineRequest(prompt(length, seed), _OUTPUTS) for seed in range(batch)]
    answers, seconds = client.call(asked)
    first = max(answer.first_s for answer in answers)
    print(
        f"  {length} tokens: first in {first:.2f} s, all in {seconds:.2f}",
        file=sys.stderr,
        flush=True,
    )
    return 1e3 * (seconds - first) / (_OUTPUTS - 1)


if __name__ == "__main__":
    main()
