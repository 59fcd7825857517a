"""Are the answers of the benchmark right? A failed check fails the benchmark.

Owns the rule. A token is right if no other leads it, in the reference's scores for the same prefix,
by more than the noise of the dtype; where the reference is surer than that, it must be the
reference's own choice. The score of a drawn token is its logit over the temperature plus its own
Gumbel noise, which seed, position and vocabulary index give; so drawn tokens are held to the same
rule. The noise is measured: the largest difference that plain torch makes between the weights'
dtype and float32. Long sequences are held against plain torch in the weights' dtype, which has
that noise too, so it counts twice there.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.engine.client import Answer
from benchmarks.engine.reference import reference_logits
from kernels.philox import uniform_noise
from workers.engine.runner import Runner

MAX_ROWS: Final = 64
"""Checked tokens of one answer, spread evenly: their logits take memory."""

LONG: Final = 4_096
"""Longer sequences would take seconds each in float32."""

NOISE_FACTOR: Final = 2.0
"""Ours and plain torch's 16 bits differ from float32 in different directions."""

MIN_DECIDED: Final = 0.2
"""A check says nothing if the reference is hardly ever sure."""

_ROUNDING: Final = 1e-4
"""Of the spread of the logits: float32 sums in another order."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One answer. `lead`: the largest score over one of our tokens, which `noise` bounds."""

    prompt_tokens: int
    num_tokens: int
    temperature: float
    dtype: str
    lead: float
    noise: float
    decided: float

    @property
    def is_right(self) -> bool:
        """Whether every token is right; NaN is not."""
        return self.lead <= self.noise

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "is_right": self.is_right}


def check_answers(runner: Runner, answers: Sequence[Answer]) -> list[Checked]:
    """Every answer against the reference. Raises `RuntimeError` if one has not ended by itself."""
    for answer in answers:
        if answer.ending != "length" or len(answer.outputs) != answer.request.max_tokens:
            raise RuntimeError(f"an answer of {len(answer.outputs)} tokens ended: {answer.ending}")
    noise = _noise(runner, answers)
    return [_check(runner, answer, noise) for answer in answers]


def failures(checked: Sequence[Checked]) -> list[str]:
    """What is wrong, in lines; nothing if all is right."""
    lines = [f"wrong tokens: {one}" for one in checked if not one.is_right]
    tokens = sum(one.num_tokens for one in checked)
    decided = sum(one.num_tokens * one.decided for one in checked)
    if not checked or decided < MIN_DECIDED * tokens:
        lines.append(f"the reference is sure of {decided:.0f} of {tokens} tokens only")
    return lines


def _noise(runner: Runner, answers: Sequence[Answer]) -> float:
    """Of the shortest answer that has something to say."""
    shortest = min(answers, key=lambda one: len(one.request.prompt) + len(one.outputs))
    ids, rows, _ = _rows(runner, shortest)
    exact = reference_logits(runner.model.config, runner.model.weights, ids, rows, torch.float32)
    dtype = runner.model.weights.embedding.dtype
    rough = reference_logits(runner.model.config, runner.model.weights, ids, rows, dtype)
    difference = float((exact - rough).abs().max())
    return NOISE_FACTOR * difference + _ROUNDING * float(exact.std())


def _check(runner: Runner, answer: Answer, noise: float) -> Checked:
    ids, rows, chosen = _rows(runner, answer)
    is_long = len(ids) > LONG
    dtype = runner.model.weights.embedding.dtype if is_long else torch.float32
    scores = reference_logits(runner.model.config, runner.model.weights, ids, rows, dtype)
    bound = 2 * noise if is_long else noise
    temperature = answer.request.temperature
    if temperature > 0:
        seeds = torch.full_like(rows, answer.request.seed)
        uniform = uniform_noise(seeds, rows + 1, scores.shape[1])
        scores = scores / temperature - (-uniform.log()).log()
        bound /= temperature
    best = scores.topk(2, dim=-1).values
    lead = best[:, 0] - scores.gather(1, chosen.unsqueeze(1)).squeeze(1)
    return Checked(
        prompt_tokens=len(answer.request.prompt),
        num_tokens=len(rows),
        temperature=temperature,
        dtype=str(dtype).removeprefix("torch."),
        lead=float(lead.max()),
        noise=bound,
        decided=float((best[:, 0] - best[:, 1] > bound).float().mean()),
    )


def _rows(runner: Runner, answer: Answer) -> tuple[Tensor, Tensor, Tensor]:
    """All ids but the last output, the rows that are checked, and the tokens they chose."""
    device = runner.model.weights.embedding.device
    outputs = torch.tensor(answer.outputs, device=device)
    prompt = torch.tensor(answer.request.prompt, device=device)
    picked = torch.linspace(0, len(outputs) - 1, min(MAX_ROWS, len(outputs))).long().to(device)
    return torch.cat((prompt, outputs[:-1])), picked + len(prompt) - 1, outputs[picked]
