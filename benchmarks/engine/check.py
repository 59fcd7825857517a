"""Checks the answers of the benchmark; a failed check fails the run.

Owns the evidence: plain torch's scores for the tokens of an answer. `verdict.py` has the rule. The
score of a drawn token is its logit over the temperature plus its Gumbel noise, which depends on
seed, position and vocabulary index, so drawn tokens follow the same rule as greedy ones.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from benchmarks.engine.client import Answer
from benchmarks.engine.reference import reference_logits
from benchmarks.engine.verdict import Checked, Evidence, judge
from kernels.philox import uniform_noise
from workers.engine.runner import Runner

MAX_ROWS: Final = 64
"""Checked tokens of one answer, spread evenly, because their logits take memory."""

LONG: Final = 4_096
"""From this many tokens on, float32 products use 11-bit factors on a card: full ones would take 5 s
per 16k tokens of 8B. bfloat16 has 8 bits.
"""

FEW: Final = 64
"""Products of up to this many rows with 8-bit weights take the rows unrounded; in larger steps rows
are rounded too.
"""

_RIVALS: Final = 32
"""Other tokens that could be the reference's choice."""

_ROUNDING: Final = 1e-5
"""The error of float32 sums in another order, as a share of the logits' spread."""


def check_answers(runner: Runner, answers: Sequence[Answer]) -> list[Checked]:
    """Compare every answer with the reference. Raises `RuntimeError` if one was cut off."""
    for answer in answers:
        if answer.ending != "length" or len(answer.outputs) != answer.request.max_tokens:
            raise RuntimeError(f"an answer of {len(answer.outputs)} tokens ended: {answer.ending}")
    return [judge(_evidence(runner, answer)) for answer in answers]


def _evidence(runner: Runner, answer: Answer) -> Evidence:
    ids, rows, chosen = _rows(runner, answer)
    model, dtype = runner.model, runner.model.weights.embedding.dtype
    with _fast_products(is_on=len(ids) > LONG):
        scores = reference_logits(model.config, model.weights, ids, rows, torch.float32)
    is_wide = answer.batch is None or answer.batch > FEW
    num_rounded = len(ids) if is_wide else len(answer.request.prompt)
    rough = reference_logits(model.config, model.weights, ids, rows, dtype, num_rounded)
    noise = (rough - scores).square().mean(dim=1).sqrt()
    # A row's own noise may be small by chance in this one order of additions.
    spread = scores.std()
    noise = noise.clamp(min=float(noise.median())) + _ROUNDING * spread
    share = float(noise.mean() / spread)
    temperature = answer.request.temperature
    if temperature > 0:
        seeds = torch.full_like(rows, answer.request.seed)
        uniform = uniform_noise(seeds, rows + 1, scores.shape[1])
        scores = scores / temperature - (-uniform.log()).log()
        noise = noise / temperature
    best = scores.topk(min(_RIVALS, scores.shape[1]), dim=-1).values
    leads = (best[:, 0] - scores.gather(1, chosen.unsqueeze(1)).squeeze(1)) / noise
    gaps = (best[:, :1] - best[:, 1:]) / noise.unsqueeze(1)
    return Evidence(
        prompt_tokens=len(answer.request.prompt),
        temperature=temperature,
        noise=share,
        leads=leads.cpu(),
        gaps=gaps.cpu(),
    )


@contextmanager
def _fast_products(*, is_on: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if is_on else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _rows(runner: Runner, answer: Answer) -> tuple[Tensor, Tensor, Tensor]:
    """All ids but the last output, the checked rows, and the tokens that they chose."""
    device = runner.model.weights.embedding.device
    outputs = torch.tensor(answer.outputs, device=device)
    prompt = torch.tensor(answer.request.prompt, device=device)
    picked = torch.linspace(0, len(outputs) - 1, min(MAX_ROWS, len(outputs))).long().to(device)
    return torch.cat((prompt, outputs[:-1])), picked + len(prompt) - 1, outputs[picked]
