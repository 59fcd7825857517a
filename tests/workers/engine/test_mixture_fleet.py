"""A fleet of agents on a mixture with recurrent layers: every token as without a prefix cache."""

import random

import pytest

from benchmarks.drive import Drive, fresh_runner
from protocol.sampling import SamplingParams
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny
from workers.engine.runner import ModelRunner
from workers.scheduler.saving import SavePolicy

BLOCK = 16
SAVED = SavePolicy(grain=BLOCK, every=4 * BLOCK, least=BLOCK, along=BLOCK)
AGENTS = 8
TURNS = 3
PREFIX = 512
"""Tokens that all agents share: a system prompt and tools."""

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module", name="runner")
def _runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    path = write_family(tmp_path_factory.mktemp("model"), "qwen3_5_moe")
    sizes = {"kv_tokens": 8192, "block_size": BLOCK, "token_budget": 128, "snapshots": 64}
    return load_tiny(path, dtype="float32", **sizes)


def _turn(
    drive: Drive, prompts: list[list[int]], *, is_cached: bool
) -> tuple[list[list[int]], int]:
    """The answers to all prompts at once, and how many of their tokens were cached."""
    salts = [b"" if is_cached else f"{drive.num_steps} {one}".encode() for one in range(AGENTS)]
    numbers = [
        drive.submit(prompt, GREEDY, salt=salt) for prompt, salt in zip(prompts, salts, strict=True)
    ]
    drive.finish()
    answers = [drive.answers[number] for number in numbers]
    return [answer.outputs for answer in answers], sum(answer.cached_tokens for answer in answers)


@pytest.mark.parametrize("num_blocks", [None, 52])
def test_a_fleet_says_what_it_says_without_a_cache(
    runner: ModelRunner, num_blocks: int | None
) -> None:
    """Eight agents behind one prefix, each turn behind all before it; half of them part from the
    first one's conversation after its first turn. With few blocks
    some wait, and blocks of others are evicted.
    """
    rng = random.Random(3)

    def drawn(length: int) -> list[int]:
        return [rng.randrange(3, 151) for _ in range(length)]

    cached = Drive(fresh_runner(runner), num_blocks=num_blocks, save_policy=SAVED)
    prefix = drawn(PREFIX)
    talks = [prefix + drawn(20 + agent) for agent in range(AGENTS)]
    hits, sizes, turns = [], [], []
    for turn in range(TURNS):
        found, num_cached = _turn(cached, talks, is_cached=True)
        hits.append(num_cached)
        sizes.append(sum(map(len, talks)))
        turns.append((talks, found))
        talks = [talk + answer + drawn(17) for talk, answer in zip(talks, found, strict=True)]
        if turn == 0:  # forks
            talks[AGENTS // 2 :] = [talks[0] + drawn(5) for _ in talks[AGENTS // 2 :]]
    # Afterwards: both drives have the same memory.
    alone = Drive(fresh_runner(runner), save_policy=SAVED)
    for asked, found in turns:
        assert _turn(alone, asked, is_cached=False) == (found, 0)
    assert hits[1] > (0.85 if num_blocks is None else 0.3) * sizes[1]
    assert hits[2] > (0.85 if num_blocks is None else 0.3) * sizes[2]
