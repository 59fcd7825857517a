"""An engine is killed at any moment of any copy; the next one finds what is true, and nothing else.

A process forks an engine for each kill. A profiler counts the calls within the tier's code, and the
engine kills itself at one of them: before, within and behind each write of a page or a record.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from protocol.sampling import SamplingParams
from tests.fakes.bounded_run import run_bounded
from tests.fakes.host_tiers import tier_for
from tests.fakes.tiny_families import write_family
from tests.workers.engine.tier import test_tier as cases
from workers.engine.runner import ModelRunner
from workers.engine.tier.engine_tier import EngineTier, Memories
from workers.engine.tier.page_words import Checksums
from workers.scheduler.tier import EntryKind

BRIEF = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
BOUND_S = 280
NUM_KILLS = 20
NUM_PAGES = 150


@pytest.mark.parametrize("family", ["qwen2", "qwen3_5"])
def test_a_kill_at_any_moment_leaves_truth_or_nothing(tmp_path: Path, family: str) -> None:
    model = write_family(tmp_path, family)
    script = [sys.executable, "-m", "tests.workers.engine.tier.test_killed", str(model)]
    ended = run_bounded(script, BOUND_S)
    assert ended.returncode == 0, ended.stderr
    found = dict(word.split("=") for word in ended.stdout.split())
    assert int(found["killed"]) > NUM_KILLS * 3 // 4
    assert int(found["warm"]) > NUM_KILLS // 2
    assert int(found["hits"]) > 0


class _Served(NamedTuple):
    """A model, the prompts, what is said to them without a tier, and the region."""

    host: ModelRunner
    prompts: list[list[int]]
    expected: list[list[int]]
    fd: int

    def runner(self) -> tuple[ModelRunner, EngineTier]:
        """A runner that has never run, over the region."""
        runner = cases._runner(self.host, "cpu")
        return runner, tier_for(runner, NUM_PAGES, self.fd)


def _serve(served: _Served, kill_at: int) -> int:
    """Serve all prompts; returns how many calls within the tier's code that took."""
    calls = 0

    def count(frame: Any, _event: str, _arg: object) -> None:
        nonlocal calls
        name = frame.f_code.co_filename
        if "/tier/" in name and "/tests/" not in name:
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    runner, _ = served.runner()
    sys.setprofile(count)
    try:
        answers, _ = cases._ask(cases._drive(runner, "cpu"), served.prompts, BRIEF)
    finally:
        sys.setprofile(None)
    assert answers == served.expected
    return calls


def _check(served: _Served) -> int:
    """How much the next engine would find; every page of it is what its record says."""
    runner, tier = served.runner()
    books = tier.host_tier(0.0)
    sums = Checksums(tier.layout.page_bytes, torch.device("cpu"))
    words = Memories((runner.cache,), runner.kept).words
    for name in books.pool.names:
        entry = books.pool.get(name)
        assert entry is not None
        sizes = [words.block_bytes]
        if name.kind is EntryKind.STATE:
            starts = range(0, words.state_bytes, words.page_bytes)
            sizes = [min(words.page_bytes, words.state_bytes - start) for start in starts]
        for page, size, checksum in zip(entry.pages, sizes, entry.checksums, strict=True):
            assert int(sums.of(tier.region.pages[page], size)) == checksum
    return books.num_recovered


def _main(model: Path) -> None:
    torch.set_num_threads(1)
    host, prompts = cases._load(model, "cpu"), cases._prompts(1)
    expected, _ = cases._ask(cases._drive(cases._runner(host, "cpu"), "cpu"), prompts, BRIEF)
    served = _Served(host, prompts, expected, os.memfd_create("herma-cache"))
    num_calls, killed, warm = _serve(served, 0), 0, 0
    for number in range(NUM_KILLS):
        if number % 5 == 0:
            os.ftruncate(served.fd, 0)
        pid = os.fork()
        if pid == 0:
            signal.alarm(BOUND_S)  # ends it in any case
            # A warm engine stores less, so it makes fewer calls.
            latest = num_calls * 3 // (8 if number % 2 else 4)
            _serve(served, 1 + latest * (2 * number + 1) // (2 * NUM_KILLS))
            os._exit(1)
        _, status = os.waitpid(pid, 0)
        killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        warm += _check(served) > 0
    runner, _ = served.runner()
    answers, hits = cases._ask(cases._drive(runner, "cpu"), prompts[-3:], BRIEF)
    assert answers == expected[-3:]
    print(f"killed={killed} warm={warm} hits={hits} calls={num_calls}")


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
