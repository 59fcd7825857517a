"""Checks the answers of the benchmark; a failed check fails the run.

Owns the evidence: plain torch's scores for the tokens of an answer. `verdict.py` has the rule. The
score of a drawn token is its logit over the temperature plus its Gumbel noise, which depends on
seed, position and vocabulary index, so drawn tokens follow the same rule as greedy ones.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import torch
from torch import Tensor

from benchmarks.engine.client import EngineAnswer
from benchmarks.engine.reference import ReferencePart, reference_logits
from benchmarks.engine.verdict import Evidence, JudgedAnswer, judge
from kernels.philox import uniform_noise
from workers.engine.graphs.capture_order import graph_sizes
from workers.engine.runner import ModelRunner

MAX_ROWS: Final = 64
"""Checked tokens of one answer, spread evenly, because their logits take memory."""

LONG: Final = 4_096
"""From this many tokens on, float32 products use 11-bit factors on a card: full ones would take 5 s
per 16k tokens of 8B. bfloat16 has 8 bits.
"""

_RIVALS: Final = 32
"""Other tokens that could be the reference's choice."""

_ROUNDING: Final = 1e-5
"""The error of float32 sums in another order, as a share of the logits' spread."""


def check_answers(runner: ModelRunner, answers: Sequence[EngineAnswer]) -> list[JudgedAnswer]:
    """Compare every answer with the reference. Raises `RuntimeError` if one was cut off."""
    for answer in answers:
        if answer.ending != "length" or len(answer.outputs) != answer.request.max_tokens:
            raise RuntimeError(f"an answer of {len(answer.outputs)} tokens ended: {answer.ending}")
    return [judge(_evidence(runner, answer)) for answer in answers]


def _evidence(runner: ModelRunner, answer: EngineAnswer) -> Evidence:
    ids, rows, chosen = _rows(runner, answer)
    model, dtype = runner.model, runner.model.weights.embedding.dtype
    computed = partial(
        reference_logits,
        model.config,
        model.weights,
        ids,
        rows,
        parts=_parts(runner, answer),
        invariant=model.invariant,
    )
    with _fast_products(is_on=len(ids) > LONG):
        scores = computed(dtype=torch.float32)
    rough = computed(dtype=dtype)
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
        largest=(noise / noise.max()).cpu() if model.config.mixtures else None,
    )


def _parts(runner: ModelRunner, answer: EngineAnswer) -> tuple[ReferencePart, ...]:
    """The steps of an answer: of its cached prompt, of the rest of it, and of its outputs. Which
    rows the kernels round depends on the number of rows of a step alone.

    A cached prompt was computed in steps as large as could be, and all answers of a call begin
    together. Without a `batch` others came and went: then every step counts as a full one, which
    rounds most.
    """
    budget, cached = runner.facts.token_budget, answer.cached_tokens
    new, later = len(answer.request.prompt) - cached, len(answer.outputs) - 1
    batch = answer.batch
    if batch is None:
        return (ReferencePart(cached + new + later, budget, runner.facts.max_seqs),)
    batch = min(batch, runner.facts.max_seqs)
    padded = batch
    if runner.model.device.type == "cuda":  # by the smallest graph that holds them
        padded = next(size for size in graph_sizes(runner.facts.max_seqs) if size >= batch)
    parts = (
        ReferencePart(cached, budget, batch),
        ReferencePart(new, min(budget, batch * new), batch),
        ReferencePart(later, padded, padded),
    )
    return tuple(part for part in parts if part.num_rows)


@contextmanager
def _fast_products(*, is_on: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if is_on else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _rows(runner: ModelRunner, answer: EngineAnswer) -> tuple[Tensor, Tensor, Tensor]:
    """All ids but the last output, the checked rows, and the tokens that they chose."""
    device = runner.model.weights.embedding.device
    outputs = torch.tensor(answer.outputs, device=device)
    prompt = torch.tensor(answer.request.prompt, device=device)
    picked = torch.linspace(0, len(outputs) - 1, min(MAX_ROWS, len(outputs))).long().to(device)
    return torch.cat((prompt, outputs[:-1])), picked + len(prompt) - 1, outputs[picked]
