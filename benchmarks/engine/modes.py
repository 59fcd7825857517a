"""`python -m benchmarks.engine.modes [SHAPE]`: the cost or gain of each mode of a worker.

Owns the comparison: decode steps at a few batch sizes and cold prompts, by the same engine without
and with each mode, one after the other. Weights are random.
"""

import argparse
import gc
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Final

import msgspec
import torch

from benchmarks.engine.client import BenchClient, EngineRequest
from benchmarks.engine.engine import MeasuredEngine
from benchmarks.engine.run import Options, worker_config
from benchmarks.machine import describe_machine
from config import WorkerConfig
from workers.engine.compile.compile_ahead import start_compiling
from workers.engine.start import load_runner

MODES: Final = ("invariant", "prefill_fp8")
"""Options of the engine's benchmark."""

_BATCHES: Final = (1, 8, 64)
_PROMPTS: Final = (4096, 8192)
_PROMPT: Final = 128
_OUTPUTS: Final = 128
_RUNS: Final = 3
_MAX_SEQS: Final = 64
_KV_TOKENS: Final = 65_536

Timed = dict[str, float]
"""Milliseconds by name."""


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.modes")
    parser.add_argument("shape", nargs="?", default="qwen3-8b")
    parser.add_argument("--modes", default=",".join(MODES), metavar="LIST")
    parser.add_argument("--fp8", action="store_true", help="layers in 8 bits")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="short prompts and answers, for a CPU")
    arguments = parser.parse_args()
    options = Options(arguments.shape, fp8=arguments.fp8, device=arguments.device)
    modes = arguments.modes.split(",")
    if unknown := set(modes) - set(MODES):
        parser.error(f"--modes {sorted(unknown)}: some of {', '.join(MODES)}")
    plain = measure(options, is_small=arguments.small)
    others = {
        mode: measure(replace(options, **{mode: True}), is_small=arguments.small) for mode in modes
    }
    print(table(plain, others))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    machine = "; ".join(describe_machine(("torch", "triton")).values())
    print(f"\n{options.name}, {device}; {machine}")


def table(plain: Timed, others: dict[str, Timed]) -> str:
    """A row for each test: the milliseconds of each mode, and their ratio to those without it."""
    heads = "".join(f" {mode} | times |" for mode in others)
    lines = [f"| ms | default |{heads}", "|---|---|" + "---|---|" * len(others)]
    for name, took in plain.items():
        cells = "".join(f" {o[name]:.2f} | {o[name] / took:.2f} |" for o in others.values())
        lines.append(f"| {name} | {took:.2f} |{cells}")
    return "\n".join(lines)


def measure(options: Options, *, is_small: bool) -> Timed:
    """The figures of one engine, which is released afterwards."""
    config = bench_config(options)
    runner = load_runner(config, lambda *_: None, start_compiling(config))
    engine = MeasuredEngine(runner, max_waiting=2 * _MAX_SEQS)
    found = act_on(engine, is_small=is_small)
    del engine, runner
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return found


def bench_config(options: Options) -> WorkerConfig:
    """The worker of these comparisons."""
    return msgspec.structs.replace(
        worker_config(options), max_seqs=_MAX_SEQS, kv_tokens=_KV_TOKENS, token_budget=8192,
        context_length=None, max_context=2 * max(_PROMPTS),
    )  # fmt: skip


def act_on(engine: MeasuredEngine, *, is_small: bool) -> Timed:
    """The figures of this engine."""
    found: Timed = {}
    vocab_size = engine.books.runner.model.config.vocab_size

    def act(client: BenchClient) -> None:
        found.update(_figures(client, vocab_size, is_small=is_small))

    engine.serve(act)
    return found


def _figures(
    client: BenchClient, vocab_size: int, *, is_small: bool
) -> Iterator[tuple[str, float]]:
    prompt, outputs, prompts = _PROMPT, _OUTPUTS, _PROMPTS
    if is_small:
        prompt, outputs, prompts = 8, 4, (64, 300)
    generator = torch.Generator().manual_seed(0)

    def drawn(length: int) -> list[int]:
        return torch.randint(min(vocab_size, 10_000), (length,), generator=generator).tolist()

    for batch in _BATCHES:
        times, wholes = [], []
        for _ in range(1 + _RUNS):
            answers, seconds = client.call(
                [EngineRequest(drawn(prompt), outputs) for _ in range(batch)]
            )
            first = max(answer.first_s for answer in answers)
            times.append(1e3 * (seconds - first) / (outputs - 1))
            wholes.append(1e3 * seconds)
        yield f"decode step, batch {batch}", median(times[1:])
    yield f"{_BATCHES[-1]} answers of {outputs} tokens", median(wholes[1:])
    for length in prompts:
        firsts = []
        for _ in range(1 + _RUNS):
            answers, _ = client.call([EngineRequest(drawn(length), 1)])
            firsts.append(1e3 * answers[0].first_s)
        yield f"first token, {length} tokens cold", median(firsts[1:])


if __name__ == "__main__":
    main()
