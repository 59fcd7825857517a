"""A long prefix back from the host's memory, and the gaps of decodes beside copies.

Owns the measurement: one engine of drawn weights with a host tier. `python -m
benchmarks.engine.host_tier` prints its lines. Must not know how copies are made.

- `load`: from the submission of a prompt whose first 32,768 tokens only the host has, to the end of
  the copies; and to its first token. `warm` is the first token when the card has them.
- `gap`: milliseconds between steps of 8 answers: alone, while the prompt is found on the card again
  and again, and while it is loaded each time.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Final

import torch

from benchmarks.drive import Drive
from config import DUMMY_PREFIX, WorkerConfig
from config.model import CacheConfig
from protocol.sampling import SamplingParams
from workers.engine.compile.compile_ahead import start_compiling
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner

PREFIX: Final = 32_768
NUM_ANSWERS: Final = 8
_ONE: Final = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


class HostTierBench:
    """One engine, and prompts of `length` tokens."""

    def __init__(self, runner: ModelRunner, length: int) -> None:
        self.drive = Drive(runner, token_budget=2048, max_seqs=16, looks_ahead=runner.lookahead > 0)
        self._runner = runner
        self._rng = random.Random(1)
        self._length = length

    def prompt(self) -> list[int]:
        """A prompt of random tokens, of which no block is cached."""
        size = self._runner.model.config.vocab_size
        return [self._rng.randrange(10, size) for _ in range(self._length + 8)]

    def first_token_ms(self, prompt: list[int]) -> float:
        """Milliseconds from the submission to the end of a request for one token."""
        self.settle()
        begun = time.perf_counter()
        number = self.drive.submit(prompt, _ONE)
        while self.drive.answers[number].finished is None:
            self.drive.step()
        return (time.perf_counter() - begun) * 1e3

    def loaded_bytes(self) -> int:
        """Bytes that were loaded from the host so far."""
        assert self.drive.tier is not None
        return self.drive.tier.counts.loaded_pages * self.drive.tier.room.page_bytes

    def settle(self) -> None:
        """Step until nothing runs and nothing is copied."""
        while self.drive.live() or self.drive.is_copying:
            self.drive.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def leave_to_host(self) -> None:
        """Empty the card's prefix cache once the host has all of it."""
        self.settle()
        self.drive.clear_card()

    def gaps_ms(self, seconds: float, beside: Callable[[], None] | None = None) -> list[float]:
        """The times between steps of running answers. `beside` is called when its work is done."""
        answer = SamplingParams(max_tokens=4000, temperature=0.0, ignore_eos=True)
        numbers = [self.drive.submit(self.prompt()[:200], answer) for _ in range(NUM_ANSWERS)]
        for _ in range(50):
            self.drive.step()
        gaps: list[float] = []
        until, last = time.perf_counter() + seconds, time.perf_counter()
        while time.perf_counter() < until:
            if beside is not None:
                beside()
            self.drive.step()
            now = time.perf_counter()
            gaps.append((now - last) * 1e3)
            last = now
        for number in numbers:
            self.drive.abort(number)
        self.settle()
        return gaps


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen3-8b")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, default=PREFIX)
    parser.add_argument("--host", default="16GiB")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each series of gaps")
    options = parser.parse_args()
    config = WorkerConfig(
        "bench",
        options.shape if ":" in options.shape else f"{DUMMY_PREFIX}{options.shape}",
        "bench",
        (),
        token_budget=2048,
        device=options.device,
        max_seqs=16,
        kv_tokens=3 * options.tokens + 16_384,
        context_length=options.tokens + 4096,
        cache=CacheConfig(options.host),
    )
    begun = time.perf_counter()
    runner = load_runner(config, lambda *_: None, start_compiling(config))
    print(f"start: {time.perf_counter() - begun:.1f} s", flush=True)
    bench = HostTierBench(runner, options.tokens)
    while runner.prepare(pending_only=False):
        pass
    _wait_open(bench)
    print(f"pages open: {time.perf_counter() - begun:.1f} s", flush=True)
    prompt = bench.prompt()
    print(f"cold: first token {bench.first_token_ms(prompt):.0f} ms", flush=True)
    print(f"warm: first token {bench.first_token_ms(prompt):.1f} ms", flush=True)
    for _ in range(4):
        bench.leave_to_host()
        before = bench.loaded_bytes()
        taken = bench.first_token_ms(prompt)
        size = bench.loaded_bytes() - before
        print(
            f"load: first token {taken:.1f} ms, {size / 2**30:.2f} GiB, "
            f"{size / taken / 1e6:.1f} GB/s with the step",
            flush=True,
        )
    _print_gaps(bench, prompt, options.seconds)


def _print_gaps(bench: HostTierBench, prompt: list[int], seconds: float) -> None:
    _print("alone", bench.gaps_ms(seconds))
    pending: list[int] = []

    def ask_again() -> None:
        """Ask for the prompt whenever it has been answered."""
        if not pending or bench.drive.answers[pending[-1]].finished is not None:
            pending.append(bench.drive.submit(prompt, _ONE))

    def load_again() -> None:
        """The same, when the card has forgotten it."""
        if not pending or bench.drive.answers[pending[-1]].finished is not None:
            bench.drive.clear_card()
            ask_again()

    bench.first_token_ms(prompt)
    _print("beside hits on the card", bench.gaps_ms(seconds, ask_again))
    pending.clear()
    bench.leave_to_host()
    _print("beside loads", bench.gaps_ms(seconds, load_again))
    print(f"{len(pending)} loads of the prefix", flush=True)


def _print(what: str, gaps: list[float]) -> None:
    ordered = sorted(gaps)
    p99 = ordered[int(len(ordered) * 0.99)]
    print(
        f"gap {what}: p50 {statistics.median(gaps):.2f} ms, p99 {p99:.2f} ms, "
        f"max {ordered[-1]:.2f} ms of {len(gaps)} steps",
        flush=True,
    )


def _wait_open(bench: HostTierBench) -> None:
    """Wait until all pages of the host are open."""
    pool = None if bench.drive.tier is None else bench.drive.tier.pool
    while pool is not None and pool.num_open < pool.num_pages:
        bench.drive.step()
        time.sleep(0.01)


if __name__ == "__main__":
    main()
