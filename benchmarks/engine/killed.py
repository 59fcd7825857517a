"""An engine killed under agents with long prompts, and the next one on the same host memory.

Owns the measurement: this process keeps the region, as a supervisor does, and starts two engines of
drawn weights one after the other. `python -m benchmarks.engine.killed` prints what share of the
prompts' tokens the second computes again, and the first tokens of all agents at once: from the card
and from the host before the end, and from the host after it.
"""

import argparse
import gc
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from typing import Any, Final

from benchmarks.engine.host_tier import HostTierBench, config_of, timed_start
from protocol.sampling import SamplingParams
from workers.host_cache import FD_VARIABLE, REGION_NAME, taken_fd
from workers.loop import COPYING_POLL_S

_ONE: Final = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
_MANY: Final = SamplingParams(max_tokens=3000, temperature=0.0, ignore_eos=True)
_BUSY_S: Final = 0.3


def main() -> None:
    """Start both engines and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="qwen3-8b")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--host", default="22GiB")
    parser.add_argument("--engine", choices=("first", "second"), help="what a child is")
    options = parser.parse_args()
    if options.engine is not None:
        _Agents(options).run(options.engine)
        return
    fd = os.memfd_create(REGION_NAME)
    first, told = _started("first", fd)
    _print(told)
    time.sleep(_BUSY_S)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second, told = _started("second", fd)
    _print(told)
    second.wait()


def _started(engine: str, fd: int) -> tuple["subprocess.Popen[str]", dict[str, Any]]:
    """An engine, and what it said when it was ready to be killed."""
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.engine.killed", *sys.argv[1:], "--engine", engine],
        env={**os.environ, FD_VARIABLE: str(fd)},
        pass_fds=[fd],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line.startswith("{"):
        child.kill()
        raise SystemExit(f"the {engine} engine did not begin: see its error above")
    return child, json.loads(line)


def _print(told: dict[str, Any]) -> None:
    for what, value in told.items():
        print(f"{what}: {value}", flush=True)


class _Agents:
    """One engine, and the prompts, which are the same in both."""

    def __init__(self, options: argparse.Namespace) -> None:
        config = config_of(
            options.shape, options.device, options.tokens, options.agents, options.host
        )
        begun = time.perf_counter()
        runner, opening = timed_start(config, taken_fd(os.environ))
        at = time.perf_counter()
        self._bench = HostTierBench(runner, options.tokens)
        self._drive = self._bench.drive
        books = time.perf_counter() - at
        while runner.prepare(pending_only=False):
            pass
        gc.freeze()
        rng, size = random.Random(7), runner.model.config.vocab_size
        count = options.tokens + 8
        self._prompts = [
            [rng.randrange(10, size) for _ in range(count)] for _ in range(options.agents)
        ]
        assert self._drive.tier is not None
        self._told: dict[str, Any] = {
            "start": f"{at - begun:.1f} s, host's pages {opening:.2f}, its books {books:.2f}",
            "recovered": self._drive.tier.num_recovered,
        }

    def run(self, engine: str) -> None:
        """Measure, tell, and wait for the end with all agents running."""
        if engine == "second":
            self._told["after the restart"] = self._ask()
        self._open()
        if engine == "first":
            self._told["cold"] = self._ask()
        self._bench.settle()
        self._told["from the card"] = self._ask()
        self._bench.leave_to_host()
        self._told["from the host"] = self._ask()
        if engine == "first":
            for prompt in self._prompts:
                self._drive.submit(prompt, _MANY)
            for _ in range(20):
                self._drive.step()
        print(json.dumps(self._told), flush=True)
        while self._drive.live():
            self._drive.step()

    def _ask(self) -> str:
        """All prompts at once: the first tokens, and the share that was computed."""
        begun = time.perf_counter()
        times: dict[int, float] = {}
        numbers = [self._drive.submit(prompt, _ONE) for prompt in self._prompts]
        while len(times) < len(numbers):
            if self._drive.step() is None:
                time.sleep(COPYING_POLL_S)  # as the engine's loop does
            now = time.perf_counter()
            for number in numbers:
                if self._drive.answers[number].finished is not None:
                    times.setdefault(number, (now - begun) * 1e3)
        found = sum([self._drive.answers[number].cached_tokens for number in numbers])
        share = 1 - found / sum(map(len, self._prompts))
        ordered = sorted(times.values())
        return (
            f"{share:.2%} computed, first tokens {ordered[0]:.0f} / "
            f"{statistics.median(ordered):.0f} / {ordered[-1]:.0f} ms (first, median, last)"
        )

    def _open(self) -> None:
        while not self._bench.is_open:
            self._drive.step()
            time.sleep(0.005)


if __name__ == "__main__":
    main()
