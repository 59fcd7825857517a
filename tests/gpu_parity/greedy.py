"""Greedy tokens through scheduler and runner against a float32 reference.

The second check. A token is right if no other leads it, in the reference's logits for the same
prefix, by more than the noise of the dtype: where the reference is surer than that, it must be the
reference's own choice. Without noise (float32) this is equality.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.drive import Drive, DrivenAnswer, fresh_runner
from protocol.sampling import SamplingParams
from tests.gpu_parity.logits import reference_logits
from tests.gpu_parity.report import Check, at_least, at_most, exactly
from tests.gpu_parity.scale import Scale
from workers.engine.runner import ModelRunner

_MIN_DECIDED = 0.2
"""The check has no power if the reference is rarely sure."""


def check_greedy(
    runner: ModelRunner,
    float32: Any,
    prompts: Sequence[Sequence[int]],
    scale: Scale,
    noise: float,
) -> Iterator[Check]:
    """Every budget: from nothing, again with prefix hits, and in a pool that forces preemption."""
    sampling = SamplingParams(max_tokens=scale.num_outputs, temperature=0.0, ignore_eos=True)
    for budget in scale.budgets:
        drive = Drive(fresh_runner(runner), token_budget=budget)
        name = f"greedy, budget {budget}"
        yield from _judge(name, _serve(drive, prompts, sampling), float32, noise)
        again = _serve(drive, prompts, sampling)
        hits = sum(answer.cached_tokens for answer in again)
        yield at_least(f"{name}: cached tokens of the second time", hits, 1)
        yield from _judge(f"{name}, prefix hits", again, float32, noise)
        drive = Drive(fresh_runner(runner), token_budget=budget, num_blocks=scale.small_pool)
        answers = _serve(drive, prompts, sampling)
        yield at_least(
            f"{name}: preemptions in {scale.small_pool} blocks", drive.num_preemptions, 1
        )
        yield from _judge(f"{name}, preempted", answers, float32, noise)


def _serve(
    drive: Drive, prompts: Sequence[Sequence[int]], sampling: SamplingParams
) -> list[DrivenAnswer]:
    numbers = [drive.submit(prompt, sampling) for prompt in prompts]
    drive.finish()
    return [drive.answers[number] for number in numbers]


def _judge(
    name: str,
    answers: Sequence[DrivenAnswer],
    float32: Any,
    noise: float,
) -> Iterator[Check]:
    worst, num_wrong, num_decided, num_tokens = 0.0, 0, 0, 0
    for answer in answers:
        wanted = answer.finished is not None and answer.finished.reason == "length"
        num_wrong += not wanted
        logits = reference_logits(
            float32, (*answer.prompt, *answer.outputs[:-1]), len(answer.prompt) - 1
        )
        chosen = torch.tensor(answer.outputs, device=logits.device).unsqueeze(1)
        best = logits.topk(2, dim=-1)
        lead = best.values[:, 0] - logits.gather(1, chosen).squeeze(1)
        decided = best.values[:, 0] - best.values[:, 1] > noise
        worst = max(worst, float(lead.max()))
        num_wrong += int((decided & (best.indices[:, 0] != chosen.squeeze(1))).sum())
        num_decided += int(decided.sum())
        num_tokens += len(answer.outputs)
    yield exactly(f"{name}: wrong tokens of {num_tokens}", num_wrong, 0)
    yield at_most(f"{name}: largest lead over a token of ours", worst, noise)
    yield at_least(f"{name}: share of decided tokens", num_decided / num_tokens, _MIN_DECIDED)
