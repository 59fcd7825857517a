"""`python -m benchmarks.engine.step_kernels SHAPE[:MODE] ...`: which kernels a decode step spends
its time in.

Owns the recorded runs: answers of a few batch sizes, by an engine with drawn weights. What the
profiler adds is in the figures, so compare kernels of one table and no two tables. Must not know
what a kernel does.
"""

import argparse
import gc
from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.engine.client import BenchClient, EngineRequest
from benchmarks.engine.drawing import Drawing
from benchmarks.engine.engine import MeasuredEngine
from benchmarks.engine.mixtures import MODES
from benchmarks.engine.modes import bench_config
from benchmarks.engine.run import Options
from benchmarks.machine import describe_machine
from benchmarks.speculation.profile import record
from workers.engine.compile.compile_ahead import start_compiling
from workers.engine.start import load_runner

_MAX_WAITING = 128


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
        shape, _, mode = name.partition(":")
        if mode and mode not in MODES:
            parser.error(f"{name}: SHAPE:MODE, of the modes {', '.join(MODES)}")
        options = Options(shape, dummy=True, device=arguments.device, **MODES[mode or "bf16"])
        for line in measure(options, batches, arguments.prompt, arguments.outputs):
            print(line, flush=True)
    print("; ".join(describe_machine(("torch", "triton")).values()))


def measure(options: Options, batches: tuple[int, ...], prompt: int, outputs: int) -> list[str]:
    """The table of one engine, which is released afterwards."""
    config = bench_config(options)
    runner = load_runner(config, lambda *_: None, start_compiling(config))
    drawing = Drawing.of(runner.model)
    if drawing is not None:
        drawing.turn(on=True)
    engine = MeasuredEngine(runner, max_waiting=_MAX_WAITING)
    lines: list[str] = []

    def act(client: BenchClient) -> None:
        for batch in batches:
            run = partial(_run, client, batch, prompt, outputs)
            run()
            lines.append(f"{options.name}, batch {batch}, {prompt} tokens in")
            lines.extend(record(run))

    engine.serve(act)
    del engine, runner
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return lines


def _run(client: BenchClient, batch: int, prompt: int, outputs: int) -> int:
    client.call([EngineRequest(list(_tokens(prompt, seed)), outputs) for seed in range(batch)])
    return outputs


def _tokens(length: int, seed: int) -> Iterator[int]:
    """Prompts that differ from their first token on, so none is found in the prefix cache of
    another; a second run of the same finds its own, and computes one block.
    """
    return ((7919 * seed + 31 * index) % 9973 for index in range(length))


if __name__ == "__main__":
    main()
