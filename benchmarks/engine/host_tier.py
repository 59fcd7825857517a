"""A long prefix back from the host's memory, and the gaps of decodes beside copies.

Owns the measurement: one engine of drawn weights with a host tier. `python -m
benchmarks.engine.host_tier` prints its lines. Must not know how copies are made.

- `load`: from the submission of a prompt whose first 32,768 tokens only the host has, to the end of
  the copies; and to its first token. `warm` is the first token when the card has them.
- `gap`: milliseconds between steps of 8 answers: while the pages are opened, alone, while the
  prompt is found on the card again and again, and while it is loaded each time. The time in which
  the benchmark empties the card's cache is left out.
- `begin`: milliseconds of the host's thread for the launches of one transfer.
- `small copy`: see `benchmarks.engine.link`.
"""

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

import torch

from benchmarks.drive import Drive
from benchmarks.engine.link import print_small_copies
from config import DUMMY_PREFIX, CacheConfig, WorkerConfig
from protocol.sampling import SamplingParams
from workers.engine.compile.compile_ahead import start_compiling
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner
from workers.engine.tier.sizing import open_tier
from workers.scheduler.tier import Transfer

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
        return self.drive.tier.num_loaded * self.drive.tier.room.page_bytes

    def settle(self) -> None:
        """Step until nothing runs and nothing is copied."""
        while self.drive.live() or self.drive.is_copying:
            self.drive.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    @property
    def is_open(self) -> bool:
        """Whether all pages of the host are open."""
        pool = None if self.drive.tier is None else self.drive.tier.pool
        return pool is None or pool.num_open == pool.num_pages

    def leave_to_host(self) -> None:
        """Empty the card's prefix cache once the host has all of it."""
        self.settle()
        self.drive.clear_card()

    def time_launches(self) -> list[float]:
        """Time each launch of a transfer from now on; the returned list gets the milliseconds."""
        assert self._runner.tier is not None
        copies, taken = self._runner.tier.copies, []
        begin = copies.begin

        def timed(transfer: Transfer) -> None:
            begun = time.perf_counter()
            begin(transfer)
            taken.append((time.perf_counter() - begun) * 1e3)

        copies.begin = timed  # type: ignore[method-assign]
        return taken

    def gaps_ms(
        self,
        seconds: float,
        beside: Callable[[], float] | None = None,
        lasts: Callable[[], bool] = lambda: True,
    ) -> list[float]:
        """The times between steps of running answers, for some `seconds` or as long as it `lasts`.
        `beside` is called before each step and returns the seconds to leave out.
        """
        answer = SamplingParams(max_tokens=4000, temperature=0.0, ignore_eos=True)
        numbers = [self.drive.submit(self.prompt()[:200], answer) for _ in range(NUM_ANSWERS)]
        for _ in range(50):
            self.drive.step()
        gaps: list[float] = []
        until, last = time.perf_counter() + seconds, time.perf_counter()
        while time.perf_counter() < until and lasts():
            if beside is not None:
                last += beside()
            self.drive.step()
            now = time.perf_counter()
            gaps.append((now - last) * 1e3)
            last = now
        for number in numbers:
            self.drive.abort(number)
        self.settle()
        return gaps


def config_of(shape: str, device: str, tokens: int, conversations: int, host: str) -> WorkerConfig:
    """A worker of drawn weights whose card holds some conversations of `tokens` tokens."""
    is_known = {":", "/"} & set(shape)
    return WorkerConfig(
        "bench",
        shape if is_known else f"{DUMMY_PREFIX}{shape}",
        "bench",
        (),
        token_budget=2048,
        device=device,
        max_seqs=16,
        kv_tokens=conversations * tokens + 16_384,
        context_length=tokens + 4096,
        cache=CacheConfig(host),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen3-8b")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, default=PREFIX)
    parser.add_argument("--host", default="16GiB")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each series of gaps")
    options = parser.parse_args()
    config = config_of(options.shape, options.device, options.tokens, 3, options.host)
    begun = time.perf_counter()
    runner, opening = timed_start(config)
    print(
        f"start: {time.perf_counter() - begun:.1f} s, of which the host's pages {opening:.2f}",
        flush=True,
    )
    at = time.perf_counter()
    bench = HostTierBench(runner, options.tokens)
    print(f"books of the host: {time.perf_counter() - at:.2f} s", flush=True)
    while runner.prepare(pending_only=False):
        pass
    gc.freeze()  # as an engine process does
    _print("while pages open", bench.gaps_ms(60.0, lasts=lambda: not bench.is_open))
    _wait_open(bench)
    print(f"pages open: {time.perf_counter() - begun:.1f} s", flush=True)
    launches = bench.time_launches()
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
    _print_launches(launches)
    _print_gaps(bench, prompt, options.seconds)
    _print_launches(launches)
    if runner.tier is not None and options.device.startswith("cuda"):
        print_small_copies(runner.tier.region.pages, torch.device(options.device))


def timed_start(config: WorkerConfig, cache_fd: int | None = None) -> tuple[ModelRunner, float]:
    """A started engine, and the seconds that its host tier took of the start."""
    taken = [0.0]

    def timed(*given: Any) -> None:  # noqa: ANN401 - as `open_tier` takes it
        begun = time.perf_counter()
        open_tier(*given)
        taken.append(time.perf_counter() - begun)

    with patch("workers.engine.start.open_tier", timed):
        runner = load_runner(config, lambda *_: None, start_compiling(config), cache_fd=cache_fd)
    return runner, taken[-1]


def _print_gaps(bench: HostTierBench, prompt: list[int], seconds: float) -> None:
    _print("alone", bench.gaps_ms(seconds))
    pending: list[int] = []

    def ask_again() -> float:
        """Ask for the prompt whenever it has been answered."""
        if not pending or bench.drive.answers[pending[-1]].finished is not None:
            pending.append(bench.drive.submit(prompt, _ONE))
        return 0.0

    def load_again() -> float:
        """The same, when the card has forgotten it."""
        if pending and bench.drive.answers[pending[-1]].finished is None:
            return 0.0
        begun = time.perf_counter()
        bench.drive.clear_card()
        spent = time.perf_counter() - begun
        return spent + ask_again()

    bench.first_token_ms(prompt)
    _print("beside hits on the card", bench.gaps_ms(seconds, ask_again))
    pending.clear()
    bench.leave_to_host()
    _print("beside loads", bench.gaps_ms(seconds, load_again))
    print(f"{len(pending)} loads of the prefix", flush=True)


def _print_launches(launches: list[float]) -> None:
    ordered = sorted(launches)
    if ordered:
        p99 = ordered[int(len(ordered) * 0.99)]
        print(
            f"begin: p50 {statistics.median(ordered):.3f} ms, p99 {p99:.3f} ms of {len(ordered)} "
            "transfers",
            flush=True,
        )
    launches.clear()


def _print(what: str, gaps: list[float]) -> None:
    ordered = sorted(gaps) or [0.0]
    p99 = ordered[int(len(ordered) * 0.99)]
    print(
        f"gap {what}: p50 {statistics.median(ordered):.2f} ms, p99 {p99:.2f} ms, "
        f"max {ordered[-1]:.2f} ms of {len(gaps)} steps",
        flush=True,
    )


def _wait_open(bench: HostTierBench) -> None:
    """Wait until all pages of the host are open."""
    while not bench.is_open:
        bench.drive.step()
        time.sleep(0.01)


if __name__ == "__main__":
    main()
