"""What a sequence must not depend on: the conditions under which the same requests are served.

Owns the requests and the conditions, for CPU and card. Must not know which answers are right.
"""

import random
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.drive import Drive, fresh_runner
from protocol.sampling import SamplingParams
from workers.engine.runner import ModelRunner
from workers.scheduler import Chunk, SequenceStart, StepPlan

Answers = list[list[int]]


class Asked(NamedTuple):
    """One request."""

    prompt: list[int]
    sampling: SamplingParams
    seed: int


def requests(num: int, max_tokens: int, vocab_size: int, longest: int) -> list[Asked]:
    """Greedy and sampled ones by turns; a quarter begins alike."""
    rng = random.Random(5)
    greedy = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    drawn = SamplingParams(max_tokens=max_tokens, temperature=1.0, top_p=0.95, ignore_eos=True)
    shared = [rng.randrange(vocab_size) for _ in range(longest // 2)]
    asked = []
    for number in range(num):
        prompt = [rng.randrange(vocab_size) for _ in range(rng.randrange(1, longest))]
        if number % 4 == 0:
            prompt = shared + prompt[: longest // 2]
        asked.append(Asked(prompt, drawn if number % 2 else greedy, seed=number + 2**40))
    return asked


def serve(drive: Drive, asked: Sequence[Asked], outputs: Sequence[list[int]] = ()) -> Answers:
    """All at once; `outputs` are those of an earlier attempt of each."""
    known = list(outputs) or [[] for _ in asked]
    numbers = [
        drive.submit(one.prompt, one.sampling, outputs=done, seed=one.seed)
        for one, done in zip(asked, known, strict=True)
    ]
    drive.finish()
    return [drive.answers[number].outputs for number in numbers]


def alone(runner: ModelRunner, asked: Sequence[Asked]) -> Answers:
    """One after the other; prompts that begin alike find it cached."""
    drive = Drive(runner)
    return [answer for one in asked for answer in serve(drive, [one])]


def conditions(
    runner: ModelRunner,
    asked: Sequence[Asked],
    few_blocks: int,
    *,
    short_budget: int = 24,
    captured: ModelRunner | None = None,
) -> dict[str, Answers]:
    """The answers by condition, each on a cache that holds nothing at first but those of `captured`
    (a runner with graphs, None: there are none), which are alone.
    """
    found = {"alone": alone(captured or fresh_runner(runner), asked)}
    together = Drive(fresh_runner(runner))
    found["together"] = serve(together, asked)
    found["cached"] = serve(together, asked)
    assert sum(answer.cached_tokens for answer in together.answers.values()) > 0
    found["short chunks"] = serve(Drive(fresh_runner(runner), token_budget=short_budget), asked)
    poor = Drive(fresh_runner(runner), num_blocks=few_blocks)
    found["preempted"] = serve(poor, asked)
    assert poor.num_preemptions > 0
    half = [answer[: 1 + number % len(answer)] for number, answer in enumerate(found["alone"])]
    unfinished = [n for n, answer in enumerate(found["alone"]) if len(half[n]) < len(answer)]
    resumed = serve(
        Drive(fresh_runner(runner)), [asked[n] for n in unfinished], [half[n] for n in unfinished]
    )
    found["resumed"] = list(found["alone"])
    for number, answer in zip(unfinished, resumed, strict=True):
        found["resumed"][number] = answer
    return found


def differing(found: dict[str, Answers]) -> dict[str, int]:
    """How many answers differ from those of the first condition."""
    first, *others = found
    return {
        name: sum(a != b for a, b in zip(found[first], found[name], strict=True)) for name in others
    }


@torch.inference_mode()
def hidden_of(
    runner: ModelRunner, ids: Sequence[int], sizes: Sequence[int], others: int = 0
) -> Tensor:
    """The hidden states [len(ids), hidden] of a prompt in chunks, the first beside `others`."""
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    prompts = [list(ids), *([7 + number] * 40 for number in range(others))]
    starts = tuple(
        SequenceStart(seq, array("I", prompt), len(prompt), sampling, seed=0)
        for seq, prompt in enumerate(prompts)
    )
    size = runner.facts.block_size
    num_blocks, each = -(-len(ids) // size), -(-40 // size)
    found, begin = [], 0
    for length in sizes:
        chunks = [Chunk(0, begin, length, tuple(range(num_blocks)), samples=False)]
        for seq in range(1, 1 + others if begin == 0 else 1):
            first = num_blocks + each * (seq - 1)
            blocks = tuple(range(first, first + each))
            chunks.append(Chunk(seq, 0, min(40, seq * seq), blocks, samples=False))
        plan = StepPlan(0, starts if begin == 0 else (), tuple(chunks), ())
        found += [hidden for chunk, hidden in runner.hidden(plan) if chunk.seq == 0]
        begin += length
    return torch.cat(found)
