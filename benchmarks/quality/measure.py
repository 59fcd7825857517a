"""Compares the logits of two engines over the same tokens.

Owns the sums. Must not know settings or texts. Every window is one prompt, computed as a separate
step by the engine's code; its logits stay on the device.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp
from typing import Final

import torch
from torch import Tensor

from benchmarks.quality.texts import JudgedWindow
from protocol.sampling import SamplingParams
from workers.engine.runner import ModelRunner
from workers.scheduler import Chunk, SequenceStart, StepPlan

_ROWS: Final = 128
"""Rows whose logits are float32 at once: 78 MB with a vocabulary of 152k, and a few such tensors
exist at a time.
"""


@dataclass(slots=True)
class QualityScore:
    """Sums over the judged `tokens`, each by the logits of the position before it."""

    tokens: int = 0
    nll: float = 0.0
    agreed: int = 0
    divergence: float = 0.0

    @property
    def perplexity(self) -> float:
        """The perplexity of the next tokens."""
        return exp(self.nll / max(1, self.tokens))

    @property
    def agreement(self) -> float:
        """Share of positions with the reference's best token."""
        return self.agreed / max(1, self.tokens)

    @property
    def mean_divergence(self) -> float:
        """Kullback-Leibler, reference to this, in nats per position."""
        return self.divergence / max(1, self.tokens)


@torch.inference_mode()
def compare(
    reference: ModelRunner,
    other: ModelRunner,
    windows: Sequence[JudgedWindow],
    done: Callable[[int], None] = lambda _: None,
) -> QualityScore:
    """The score of `other` against `reference`. For an engine against itself, agreement is 1 and
    divergence 0.
    """
    score = QualityScore()
    for number, window in enumerate(windows, 1):
        expected = _hidden(reference, window.ids)
        found = expected if other is reference else _hidden(other, window.ids)
        judged = torch.tensor(window.is_judged[1:]).nonzero()[:, 0]
        for rows in judged.split(_ROWS):
            following = torch.tensor(window.ids)[rows + 1].to(found.device)
            places = rows.to(found.device)
            right, ours = (
                runner.model.logits(hidden[places]).float().log_softmax(-1)
                for runner, hidden in ((reference, expected), (other, found))
            )
            _add(score, right, ours, following)
        done(number)
    return score


def _add(score: QualityScore, right: Tensor, ours: Tensor, following: Tensor) -> None:
    score.tokens += len(ours)
    score.nll -= float(ours.gather(1, following[:, None]).double().sum())
    score.agreed += int((ours.argmax(-1) == right.argmax(-1)).sum())
    score.divergence += float((right.exp() * (right - ours)).sum(-1).double().sum())


def _hidden(runner: ModelRunner, ids: Sequence[int]) -> Tensor:
    """The last hidden states [len(ids), hidden] of one prompt."""
    tokens = array("I", ids)
    start = SequenceStart(0, tokens, len(tokens), SamplingParams(max_tokens=1), seed=0)
    blocks = tuple(range(-(-len(tokens) // runner.facts.block_size)))
    chunk = Chunk(0, 0, len(tokens), blocks, samples=False)
    ((_, hidden),) = runner.hidden(StepPlan(0, (start,), (chunk,), ended=(0,)))
    return hidden


def rows(scores: dict[str, dict[str, QualityScore]]) -> Iterator[str]:
    """A table in Markdown: a row for each setting and text."""
    yield "| setting | text | tokens | perplexity | same best token | divergence, nats |"
    yield "|---|---|---|---|---|---|"
    for setting, by_text in scores.items():
        for text, score in by_text.items():
            shares = f"{100 * score.agreement:.2f} % | {score.mean_divergence:.2e}"
            yield f"| {setting} | {text} | {score.tokens} | {score.perplexity:.4f} | {shares} |"
