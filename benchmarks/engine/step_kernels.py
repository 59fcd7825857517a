"""`python -m benchmarks.engine.step_kernels SHAPE[:MODE] ...`: which kernels a decode step spends
its time in.

Owns the recorded runs: answers of a few batch sizes, by an engine with drawn weights. What the
profiler adds is in the figures, so compare kernels of one table and no two tables. Must not know
what a kernel does.
"""

import argparse
from functools import partial

from benchmarks.engine.client import BenchClient, EngineRequest
from benchmarks.engine.drawn import options_of, prompt, serve
from benchmarks.engine.modes import bench_config
from benchmarks.engine.run import Options
from benchmarks.machine import describe_machine
from benchmarks.speculation.profile import record


def main() -> None:
    """Print the kernels of each shape and batch size, the longest first."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.step_kernels")
    parser.add_argument("names", nargs="+", metavar="SHAPE[:MODE]")
    parser.add_argument("--batches", default="1,8,64", metavar="LIST")
    parser.add_argument("--prompt", type=int, default=128, metavar="N", help="tokens in")
    parser.add_argument("--outputs", type=int, default=64, metavar="N", help="tokens out")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    batches = tuple(map(int, arguments.batches.split(",")))
    for name in arguments.names:
        options = options_of(name, arguments.device, parser)
        for line in measure(options, batches, arguments.prompt, arguments.outputs):
            print(line, flush=True)
    print("; ".join(describe_machine(("torch", "triton")).values()))


def measure(options: Options, batches: tuple[int, ...], length: int, outputs: int) -> list[str]:
    """The table of one engine."""
    lines: list[str] = []

    def act(client: BenchClient) -> None:
        for batch in batches:
            run = partial(_run, client, batch, length, outputs)
            run()
            lines.append(f"{options.name}, batch {batch}, {length} tokens in")
            lines.extend(record(run))

    serve(bench_config(options), act)
    return lines


def _run(client: BenchClient, batch: int, length: int, outputs: int) -> int:
    client.call([EngineRequest(prompt(length, seed), outputs) for seed in range(batch)])
    return outputs


if __name__ == "__main__":
    main()
