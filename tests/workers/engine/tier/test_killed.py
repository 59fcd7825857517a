"""An engine is killed at any moment of any copy; the next one finds what is true, and nothing else.

A process forks an engine for each kill. A profiler counts the calls within the tier's code, and the
engine kills itself at one of them: before, within and behind each write of a page or a record.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.tiny_families import write_family

NUM_KILLS = 20


@pytest.mark.parametrize("family", ["qwen2", "qwen3_5"])
def test_a_kill_at_any_moment_leaves_truth_or_nothing(tmp_path: Path, family: str) -> None:
    model = write_family(tmp_path, family)
    script = [sys.executable, "-m", "tests.workers.engine.tier.test_killed", str(model)]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr
    found = dict(word.split("=") for word in ended.stdout.split())
    assert int(found["killed"]) == NUM_KILLS
    assert int(found["warm"]) > NUM_KILLS // 2
    assert int(found["hits"]) > 0


def _main(model: Path) -> None:  # noqa: C901 - a process of its own
    import torch

    from protocol.sampling import SamplingParams
    from tests.fakes.host_tiers import tier_for
    from tests.workers.engine.tier import test_tier as own
    from workers.engine.runner import Runner
    from workers.engine.tier.page_words import Checksums
    from workers.scheduler.tier import Kind

    torch.set_num_threads(1)
    host = own._load(model, "cpu")
    prompts = own._prompts(1)
    greedy = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    own.GREEDY = greedy  # type: ignore[misc]
    expected, _ = own._ask(own._drive(own._runner(host, "cpu"), "cpu"), prompts)
    fd = os.memfd_create("herma-cache")
    layout_pages = 150

    def serve(kill_at: int) -> int:
        """Serve all prompts; returns how many calls that took."""
        calls = 0

        def count(frame: Any, _event: str, _arg: object) -> None:
            nonlocal calls
            if "/tier/" in frame.f_code.co_filename and "/tests/" not in frame.f_code.co_filename:
                calls += 1
                if calls == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        runner: Runner = own._runner(host, "cpu")
        tier_for(runner, layout_pages, fd)
        sys.setprofile(count)
        try:
            answers, _ = own._ask(own._drive(runner, "cpu"), prompts)
        finally:
            sys.setprofile(None)
        assert answers == expected
        return calls

    def check() -> int:
        """What the next engine would find: every page is what its record says."""
        runner = own._runner(host, "cpu")
        tier = tier_for(runner, layout_pages, fd)
        books = tier.host_tier()
        sums = Checksums(tier.layout.page_bytes, torch.device("cpu"))
        words = tier_words(runner)
        for name in books.pool.names:
            entry = books.pool.get(name)
            assert entry is not None
            sizes = [words.block_bytes]
            if name.kind is Kind.STATE:
                rest = words.state_bytes
                starts = range(0, rest, words.page_bytes)
                sizes = [min(words.page_bytes, rest - start) for start in starts]
            for page, size, checksum in zip(entry.pages, sizes, entry.checksums, strict=True):
                assert int(sums.of(tier.region.pages[page], size)) == checksum
        return books.num_recovered

    def tier_words(runner: Runner) -> Any:
        from workers.engine.tier.engine_tier import Memories

        return Memories((runner.cache,), runner.kept).words

    num_calls = serve(0)
    os.ftruncate(fd, 0)
    killed = warm = 0
    for number in range(NUM_KILLS):
        if number % 5 == 0:
            os.ftruncate(fd, 0)
        pid = os.fork()
        if pid == 0:
            serve(1 + num_calls * (2 * number + 1) // (2 * NUM_KILLS) // (2 if number % 2 else 1))
            os._exit(1)
        _, status = os.waitpid(pid, 0)
        killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        warm += check() > 0
    runner = own._runner(host, "cpu")
    tier_for(runner, layout_pages, fd)
    answers, hits = own._ask(own._drive(runner, "cpu"), prompts[-3:])
    assert answers == expected[-3:]
    print(f"killed={killed} warm={warm} hits={hits} calls={num_calls}")


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
