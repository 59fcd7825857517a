"""`python -m tests.workers.engine.parallel.answers DIR RANKS DEVICE DRAFTER`: answers.

Run as a process of its own, because ranks meet once in the life of a process. Prints, as JSON, the
tokens of requests that are batched, chunked, cached and preempted, and log-probabilities of first
tokens. With a DRAFTER, a directory or "suffix" (empty: none), also how many of its drafts were
accepted; it makes three at once, or as many as pay.
"""

import json
import os
import random
import sys
from array import array
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import msgspec
import torch

from benchmarks.drive import Drive
from config import SpeculationConfig, WorkerConfig
from protocol.sampling import SamplingParams
from workers.engine.drafting.speculating import speculation_for
from workers.engine.parallel.leader import LeadingRunner
from workers.engine.parallel.start import load_leading
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan
from workers.scheduler.saving import SavePolicy
from workers.speculation import Speculation

NUM_OUTPUTS = 16
LENGTHS = (1, 2, 31, 33, 100, 200)
NUM_LONG = 60
FEW_BLOCKS = 18
SAVED = SavePolicy(grain=16, every=64, least=16)


def configured(model_dir: Path, num_ranks: int, **changes: Any) -> WorkerConfig:
    """The worker of these tests."""
    given = {"device": "cpu", "max_seqs": 8, "token_budget": 256, **changes}
    return WorkerConfig(
        name="tiny",
        model=str(model_dir),
        serves="tiny",
        gateways=(),
        block_size=16,
        kv_tokens=4096,
        context_length=1024,
        tensor_parallel=num_ranks,
        **given,
    )


def load(config: WorkerConfig) -> ModelRunner | LeadingRunner:
    """The engine of one rank, or the first of several with all of them."""
    if config.tensor_parallel == 1:
        return load_runner(config, _silent)
    return load_leading(config, _silent, part)


def part(cause: str) -> NoReturn:
    """What a process of an engine does when its ranks have parted."""
    sys.stderr.write(f"{cause}\n")
    sys.stderr.flush()
    raise SystemExit(3)


def prompts() -> list[list[int]]:
    """Two of them share a prefix."""
    rng = random.Random(7)
    drawn = [[rng.randrange(151) for _ in range(length)] for length in LENGTHS]
    drawn[4][:70] = drawn[5][:70]
    return drawn


def tokens(
    runner: Any, sampling: SamplingParams, *, times: int = 1, **limits: Any
) -> list[list[int]]:
    """The answers to all prompts; from the second of `times` on their blocks are cached."""
    drive = driven(runner, sampling, times=times, **limits)
    return [answer.outputs for answer in drive.answers.values()]


def preempted_tokens(runner: Any, **limits: Any) -> list[list[int]]:
    """Longer answers, for which some sequences must give up their blocks."""
    sampling = SamplingParams(max_tokens=NUM_LONG, temperature=0.0, ignore_eos=True)
    drive = driven(runner, sampling, num_blocks=FEW_BLOCKS, **limits)
    assert drive.num_preemptions > 0
    return [answer.outputs for answer in drive.answers.values()]


def driven(runner: Any, sampling: SamplingParams, *, times: int = 1, **limits: Any) -> Drive:
    """A scheduler over this runner that has answered all prompts."""
    drive = Drive(runner, max_seqs=4, save_policy=SAVED, **limits)
    for _ in range(times):
        for number, prompt in enumerate(prompts()):
            drive.submit(prompt, sampling, seed=number)
        drive.finish()
    return drive


def log_probabilities(runner: Any) -> list[list[tuple[int, float]]]:
    """Log-probabilities of the best tokens behind each prompt, computed in one step."""
    sampling = SamplingParams(max_tokens=1, temperature=0.0, logprobs=5)
    starts, chunks = [], []
    for seq, prompt in enumerate(prompts()):
        ids = array("I", prompt)
        blocks = tuple(range(seq * 16, seq * 16 + 16))
        starts.append(SequenceStart(seq, ids, len(ids), sampling, seed=0))
        chunks.append(Chunk(seq, 0, len(ids), blocks, samples=True))
    result = runner.run(StepPlan(0, tuple(starts), tuple(chunks), ()))
    runner.run(StepPlan(1, (), (), tuple(range(len(starts)))))
    return [item.logprobs[0].top for item in result.sampled]


def _silent(_phase: str, _share: float, _text: str) -> None:
    """The start is of no interest here."""


def all_answers(model_dir: Path, num_ranks: int, device: str, drafter: str) -> dict[str, Any]:
    """As they are printed, but for JSON's lists in the place of pairs."""
    keys: dict[str, Any] = {"device": device, "dtype": "float32"}
    if drafter:
        # The further tokens of a text that repeats by chance are seldom right.
        keys["speculation"] = SpeculationConfig(drafter, depth=2 if drafter == "suffix" else 3)
    config = configured(model_dir, num_ranks, **keys)
    runner = load(config)
    made = []

    def proposer(**changes: Any) -> Speculation | None:
        """A new one, which has learned nothing."""
        chosen = msgspec.structs.replace(config, **changes)
        found = speculation_for(chosen, runner)
        if found is not None:
            made.append(found.counters)
        return found

    greedy = SamplingParams(max_tokens=NUM_OUTPUTS, temperature=0.0, ignore_eos=True)
    drawn = SamplingParams(max_tokens=NUM_OUTPUTS, temperature=0.9, top_p=0.9, ignore_eos=True)
    found = {
        "logprobs": log_probabilities(runner),
        "batched": tokens(runner, greedy, times=2, proposer=proposer()),
        "chunked": tokens(runner, greedy, token_budget=24, proposer=proposer()),
        "drawn": tokens(runner, drawn, proposer=proposer()),
        "preempted": preempted_tokens(runner, proposer=proposer()),
    }
    if drafter:
        measured = proposer(speculation=SpeculationConfig(drafter))
        found["measured"] = tokens(runner, greedy, proposer=measured, clock=perf_counter)
        found["drafts"] = sum([sum(each.verified) for each in made])
        found["accepted"] = sum([sum(each.accepted) for each in made])
    return found


def main() -> None:
    """Answer, and print."""
    torch.set_num_threads(1)
    model_dir, num_ranks, device, drafter = sys.argv[1:]
    print(json.dumps(all_answers(Path(model_dir), int(num_ranks), device, drafter)), flush=True)
    os._exit(0)  # as an engine ends: threads of the library wait for ranks that have gone


if __name__ == "__main__":
    main()
