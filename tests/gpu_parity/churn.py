"""Many requests at once, random aborts, too few blocks.

The third check: everything ends, nothing leaks. Must not judge tokens.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

import torch

from benchmarks.drive import Drive, fresh_runner
from protocol.sampling import SamplingParams
from tests.gpu_parity.report import Check, at_least, at_most, exactly
from tests.gpu_parity.scale import Scale
from workers.engine.runner import ModelRunner

_NUM_PREFIXES = 4
_ABORT_EVERY_STEPS = 6
_CHECK_EVERY_STEPS = 16
_MAX_GROWN_BYTES = 2**20
"""Memory of sequences on the card is in tables of fixed size."""

_MAX_RESERVED = 1.05
"""The halves run different steps, so their largest temporaries differ a little."""


class _Memory(NamedTuple):
    idle_bytes: int
    reserved_bytes: int


def check_churn(
    runner: ModelRunner, vocab_size: int, scale: Scale, seed: int = 0
) -> Iterator[Check]:
    """Run the same requests twice, in two halves; the second must not need more memory."""
    rng = random.Random(seed)
    runner = fresh_runner(runner)
    concurrency = scale.churn_concurrency
    drive = Drive(runner, num_blocks=scale.churn_pool, max_seqs=concurrency)
    requests = [_request(rng, vocab_size, scale) for _ in range(scale.churn_requests)]
    aborted: set[int] = set()
    halves = []
    for _ in range(2):
        _half(drive, requests, concurrency, rng, aborted)
        halves.append(_memory())
    yield exactly("churn: requests without their own ending", _num_wrong(drive, aborted), 0)
    yield at_least("churn: aborted requests", len(aborted), 1)
    yield at_least("churn: preemptions", drive.num_preemptions, 1)
    hits = sum(answer.cached_tokens for answer in drive.answers.values())
    yield at_least("churn: cached tokens", hits, 1)
    yield exactly("churn: blocks leaked", drive.num_blocks - drive.num_free_blocks, 0)
    yield at_most("churn: sequences kept by the runner", runner.num_sequences, 1)
    first, second = halves
    grown = second.idle_bytes - first.idle_bytes
    yield at_most("churn: bytes in use grown in the second half", grown, _MAX_GROWN_BYTES)
    growth = second.reserved_bytes / max(1, first.reserved_bytes)
    yield at_most("churn: device memory, second half to first", growth, _MAX_RESERVED)


def _request(rng: random.Random, vocab_size: int, scale: Scale) -> tuple[list[int], SamplingParams]:
    """One of a few shared prefixes, a tail of its own, and any way of sampling."""
    which = random.Random(rng.randrange(_NUM_PREFIXES))
    prefix = [which.randrange(vocab_size) for _ in range(scale.prefix_length)]
    tail = [rng.randrange(vocab_size) for _ in range(rng.randint(1, 100))]
    sampling = SamplingParams(
        max_tokens=rng.randint(scale.churn_outputs // 3, scale.churn_outputs),
        temperature=rng.choice((0.0, 0.7, 1.0)),
        top_p=rng.choice((1.0, 0.9)),
        top_k=rng.choice((0, 40)),
        min_p=rng.choice((0.0, 0.05)),
        frequency_penalty=rng.choice((0.0, 0.0, 0.5)),
        repetition_penalty=rng.choice((1.0, 1.0, 1.1)),
        logprobs=rng.choice((None, None, 5)),
        ignore_eos=True,
    )
    return prefix + tail, sampling


def _half(
    drive: Drive,
    requests: list[tuple[list[int], SamplingParams]],
    concurrency: int,
    rng: random.Random,
    aborted: set[int],
) -> None:
    waiting = list(reversed(requests))
    while waiting or drive.live():
        while waiting and len(drive.live()) < concurrency:
            prompt, sampling = waiting.pop()
            drive.submit(prompt, sampling, seed=rng.getrandbits(63))
        drive.step()
        live = drive.live()
        if live and drive.num_steps % _ABORT_EVERY_STEPS == 0:
            aborted.add(victim := rng.choice(live))
            drive.abort(victim)
        if drive.num_steps % _CHECK_EVERY_STEPS == 0:
            drive.check()
    # The runner frees ended sequences at its next step, so both halves end with one.
    drive.submit([0], SamplingParams(max_tokens=1, temperature=0.0))
    drive.finish()


def _num_wrong(drive: Drive, aborted: set[int]) -> int:
    wrong = 0
    for number, answer in drive.answers.items():
        ending = answer.finished
        expected = "abort" if number in aborted else "length"
        wrong += (
            ending is None
            or ending.reason != expected
            or ending.output_tokens != len(answer.outputs)
        )
    return wrong


def _memory() -> _Memory:
    """Zero without a card: only the card's allocator is checked."""
    if not torch.cuda.is_available():
        return _Memory(0, 0)
    torch.cuda.synchronize()
    return _Memory(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
