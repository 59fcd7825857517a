"""An engine of our own asleep and awake on a card: seconds, memory, and equal answers.

Owns the measurement: one engine of drawn weights whose cache holds long prompts. `python -m
benchmarks.engine.native_sleep` prints a table. Must not know how memory is moved.

- `asleep`: from the call to the answer, by then the card's memory is free.
- `awake`: from the call to the answer; `first token`: from that call to the first token of a prompt
  that was cached before the sleep.
- `card asleep`: what the driver says is in use, by all processes, and how much of it was in use
  before this process used the card.
"""

import argparse
import random
import time
from pathlib import Path
from typing import Final, NamedTuple

import torch

from benchmarks.drive import Drive
from config import DUMMY_PREFIX, WorkerConfig
from protocol.sampling import SamplingParams
from workers.engine.compile.compile_ahead import start_compiling
from workers.engine.runner import ModelRunner
from workers.engine.sleep.choice import begun_sleep
from workers.engine.sleep.device_sleep import DeviceSleep
from workers.engine.start import load_runner

_ONE: Final = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
_SOME: Final = SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True)
_PROMPT: Final = 16_384


class SleepAndWake(NamedTuple):
    """Seconds of one sleep and wake, bytes of the card meanwhile, and whether answers were equal
    and found their prompt.
    """

    asleep_s: float
    awake_s: float
    first_token_s: float
    card_bytes: int
    is_equal: bool
    cached_tokens: int


class NativeSleepBench:
    """One engine whose cache holds `num_tokens` tokens of prompts."""

    def __init__(self, runner: ModelRunner, sleep: DeviceSleep, num_tokens: int) -> None:
        self._sleep = sleep
        self.drive = Drive(runner, looks_ahead=runner.lookahead > 0)
        size, rng = runner.model.config.vocab_size, random.Random(1)
        each = min(num_tokens, _PROMPT)
        self._prompts = [
            [rng.randrange(10, size) for _ in range(each)] for _ in range(num_tokens // each)
        ]
        self._answers: list[list[int]] = []
        self._ask_all()

    def prepare(self) -> float:
        """Seconds until the host's memory is ready."""
        begun = time.perf_counter()
        self._sleep.expect(self.drive.blocks.held_counts())
        for store in (self._sleep._weights_store, self._sleep._rows_store):  # noqa: SLF001
            if store is not None:
                store.wait()
        return time.perf_counter() - begun

    def expect_answers(self) -> bool:
        """Take the answers of now, from cached prompts, as those to compare with. Returns whether
        the engine gives them twice.
        """
        self._answers, _ = self._ask_all()
        return self._ask_all()[0] == self._answers

    def switch(self) -> SleepAndWake:
        """Sleep and wake once. Raises `RuntimeError` for one that fails."""
        blocks = self.drive.blocks
        torch.cuda.synchronize()
        begun = time.perf_counter()
        blocks.shrink(self._sleep.fits)
        slept = self._sleep.fall_asleep(blocks.held_places())
        asleep_s = time.perf_counter() - begun
        card_bytes = used_bytes()
        begun = time.perf_counter()
        woken = self._sleep.wake()
        awake_s = time.perf_counter() - begun
        if why := slept.why or woken.why:
            raise RuntimeError(why)
        self._ask(self._prompts[0], _ONE)
        first_token_s = time.perf_counter() - begun
        answers, cached = self._ask_all()
        is_equal = answers == self._answers
        return SleepAndWake(asleep_s, awake_s, first_token_s, card_bytes, is_equal, cached)

    def _ask_all(self) -> tuple[list[list[int]], int]:
        """The answers to all prompts, and how many of their tokens were cached."""
        answers = [self._ask(prompt, _SOME) for prompt in self._prompts]
        return [outputs for outputs, _ in answers], sum([hit for _, hit in answers])

    def _ask(self, prompt: list[int], sampling: SamplingParams) -> tuple[list[int], int]:
        number = self.drive.submit(prompt, sampling)
        self.drive.finish()
        answer = self.drive.answers[number]
        return answer.outputs, answer.cached_tokens


def used_bytes() -> int:
    """Bytes in use on the card, by all processes."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen3-8b")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--kv-tokens", type=int, default=None, help="None: what the card holds")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--switches", type=int, default=20)
    parser.add_argument("--limit", type=float, default=1e9, help="seconds; no switch begins later")
    options = parser.parse_args()
    begun = time.perf_counter()
    free, total = torch.cuda.mem_get_info(torch.device(options.device))
    print(f"{torch.cuda.get_device_name()}, {(total - free) / 2**20:.0f} MiB in use", flush=True)
    config = WorkerConfig(
        "bench",
        options.shape if ":" in options.shape else f"{DUMMY_PREFIX}{options.shape}",
        "bench",
        (),
        token_budget=2048,
        device=options.device,
        max_seqs=64,
        kv_tokens=options.kv_tokens,
        context_length=_PROMPT + 4096,
        residency="on-demand",
        quantization=options.quantization,
    )
    runner = load_runner(config, lambda *_: None, start_compiling(config))
    print(f"start: {time.perf_counter() - begun:.1f} s", flush=True)
    sleep = begun_sleep(runner)
    assert isinstance(sleep, DeviceSleep), sleep.why
    bench = NativeSleepBench(runner, sleep, options.tokens)
    print(f"prompts cached: {time.perf_counter() - begun:.1f} s", flush=True)
    while runner.prepare(pending_only=False) and time.perf_counter() - begun < options.limit / 2:
        pass
    print(
        f"graphs: {time.perf_counter() - begun:.1f} s, {runner.device_use.num_captured}; "
        f"card {used_bytes() / 2**30:.2f} GiB, of it {sleep.num_bytes / 2**30:.2f} that can leave; "
        f"torch holds {torch.cuda.memory_reserved() / 2**20:.0f} MiB",
        flush=True,
    )
    waited = bench.prepare()
    print(f"host ready after {waited:.1f} s more, {sleep.host_bytes / 2**30:.2f} GiB", flush=True)
    print(f"answers equal without a sleep: {bench.expect_answers()}", flush=True)
    print("switch  asleep s  awake s  first token s  card MiB  torch MiB  rss GiB  equal  cached")
    for number in range(options.switches):
        if time.perf_counter() - begun > options.limit:
            break
        one = bench.switch()
        reserved, rss = torch.cuda.memory_reserved() / 2**20, _resident_bytes() / 2**30
        print(
            f"{number:6d} {one.asleep_s:9.3f} {one.awake_s:8.3f} {one.first_token_s:14.3f}"
            f" {one.card_bytes / 2**20:9.0f} {reserved:10.0f} {rss:8.2f}  {one.is_equal!s:5s}"
            f" {one.cached_tokens:7d}",
            flush=True,
        )
    print(f"card awake {used_bytes() / 2**30:.2f} GiB; {sleep!r}")


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


if __name__ == "__main__":
    main()
