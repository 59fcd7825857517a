"""Logits of the engine against `transformers`, both against float32.

The first check, which also measures the noise. The rule: our error against the float32 reference is
at most 1.5 times that of `transformers` in the same dtype on the same device, in the root mean
square and at the worst logit. Its error is the cost of the dtype; ours may come from another order
of additions, but must be of the same size.
"""

import random
from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from protocol.sampling import SamplingParams
from tests.gpu_parity.report import Check, at_most
from workers.engine.runner import ModelRunner
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan

RULE: Final = 1.5
_GREEDY: Final = SamplingParams(max_tokens=1, temperature=0.0)
_CHUNKS: Final = (40, 1, 1, 70, 3, 1)
"""Prefills, prefills behind cached tokens and decodes, over and over."""

_CANDIDATES: Final = 20


class Noise(NamedTuple):
    """`margin`: the lead of the best logit over another that the dtype may reverse."""

    checks: list[Check]
    margin: float


@torch.inference_mode()
def reference_logits(model: Any, ids: Sequence[int], first: int = 0) -> Tensor:
    """Float32 logits [len(ids) - first, vocab] of a `transformers` model."""
    inputs = torch.tensor([list(ids)], device=model.device)
    hidden = model.model(inputs, use_cache=False).last_hidden_state[0, first:]
    logits: Tensor = model.lm_head(hidden).float()
    return logits


@torch.inference_mode()
def engine_logits(runner: ModelRunner, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Float32 logits [tokens, vocab] of each prompt, computed together and in many chunks, over
    blocks in no order.
    """
    cache = runner.cache
    tokens = {seq: array("I", prompt) for seq, prompt in enumerate(prompts)}
    starts = tuple(
        SequenceStart(seq, ids, len(ids), _GREEDY, seed=0) for seq, ids in tokens.items()
    )
    free = list(range(cache.num_blocks))
    random.Random(0).shuffle(free)
    owned = {
        seq: [free.pop() for _ in range(-(-len(ids) // cache.block_size))]
        for seq, ids in tokens.items()
    }
    hidden: dict[int, list[Tensor]] = {seq: [] for seq in tokens}
    done = dict.fromkeys(tokens, 0)
    turn = 0
    while any(done[seq] < len(ids) for seq, ids in tokens.items()):
        chunks = []
        for seq, ids in tokens.items():
            length = min(_CHUNKS[(turn + seq) % len(_CHUNKS)], len(ids) - done[seq])
            if length > 0:
                chunks.append(Chunk(seq, done[seq], length, tuple(owned[seq]), samples=False))
                done[seq] += length
        plan = StepPlan(turn, () if turn else starts, tuple(chunks), ())
        for chunk, part in runner.hidden(plan):
            hidden[chunk.seq].append(part)
        turn += 1
    runner.run(StepPlan(turn, (), (), tuple(tokens)))
    return [runner.model.logits(torch.cat(parts)).float() for parts in hidden.values()]


def check_logits(
    runner: ModelRunner,
    same_dtype: Any,
    float32: Any,
    prompts: Sequence[Sequence[int]],
) -> Noise:
    """Our logits for every token of the prompts, by the rule above."""
    ours, theirs = _Error(), _Error()
    for prompt, logits in zip(prompts, engine_logits(runner, prompts), strict=True):
        expected = reference_logits(float32, prompt)
        ours.add(logits, expected)
        theirs.add(reference_logits(same_dtype, prompt), expected)
    checks = [
        at_most("logit error, root mean square", ours.rms, RULE * theirs.rms),
        at_most("logit error, worst", ours.worst, RULE * theirs.worst),
        at_most("margin error among the best, worst", ours.margin, RULE * theirs.margin),
    ]
    return Noise(checks, RULE * theirs.margin)


class _Error:
    """Differences to the reference, gathered over prompts; NaN stays NaN."""

    def __init__(self) -> None:
        self.worst = 0.0
        self.margin = 0.0
        self._squares = 0.0
        self._count = 0

    @property
    def rms(self) -> float:
        return float((self._squares / self._count) ** 0.5)

    def add(self, logits: Tensor, expected: Tensor) -> None:
        """`margin` looks at the leads of the best logit over the next ones."""
        error = logits - expected
        best = expected.topk(_CANDIDATES, dim=-1).indices
        near = error.gather(1, best)
        self.worst = _larger(self.worst, error.abs().max())
        self.margin = _larger(self.margin, (near[:, :1] - near).abs().max())
        self._squares += float(error.double().square().sum())
        self._count += error.numel()


def _larger(old: float, new: Tensor) -> float:
    # max() of Python would lose a NaN.
    return float(torch.maximum(torch.tensor(old), new.float().cpu()))
