"""What a drafter learns from: states of the model, and anchors with the tokens behind them.

Owns the choice of anchors and which drafts count. Must not know drafters.

The model reads its own training data. Where its best token is the text's, the text is what it would
say; a draft behind a token where it would say another counts no more.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from training.attention import DocumentLayout, document_mask
from training.model import Qwen3
from training.pack import IGNORED, TrainingBatch


@dataclass(frozen=True, slots=True)
class Examples:
    """A batch of T tokens and A anchors in it, sorted.

    `tokens`, `positions`, `documents` int64 [T]; `taps` [T, n hidden] and `last` [T, hidden], which
    the final norm has normed. `anchors` int64 [A] are places of tokens; `labels` int64 [A, depth]
    the tokens behind them, and `counts` bool [A, depth] which of them the model would say.
    """

    tokens: Tensor
    positions: Tensor
    documents: Tensor
    taps: Tensor
    last: Tensor
    anchors: Tensor
    labels: Tensor
    counts: Tensor


class ExampleChoice(NamedTuple):
    """The part of a batch that is used: the states of these layers, and the drafts behind each of
    up to `most` anchors. Its rows have `row_length` tokens.
    """

    taps: tuple[int, ...]
    depth: int
    most: int
    row_length: int


@dataclass(frozen=True, slots=True)
class Read:
    """A batch that the model has read, as in `Examples`; `is_answer` bool [T + depth] and `says`,
    which of these tokens the model would say itself. `anchors` int64 [all] may be drawn.
    """

    tokens: Tensor
    positions: Tensor
    documents: Tensor
    taps: Tensor
    last: Tensor
    is_answer: Tensor
    says: Tensor
    anchors: Tensor


@torch.no_grad()
def read(model: Qwen3, batch: TrainingBatch, choice: ExampleChoice) -> Read:
    """A batch without a long row: this takes longer than to train on it."""
    tokens, positions = (torch.from_numpy(part).long() for part in (batch.tokens, batch.positions))
    device = model.model.norm.weight.device
    tokens, positions = tokens.to(device), positions.to(device)
    starts = torch.zeros_like(tokens)
    bounds = torch.from_numpy(batch.bounds).long().to(device)
    starts[bounds[bounds < len(tokens)]] = 1
    # A mask counts documents by their first positions, and positions may have gaps.
    mask = document_mask(1 - starts, choice.row_length)
    layout = DocumentLayout(bounds.int(), mask, choice.row_length, len(tokens))
    streams = list(model.streams(tokens, positions, (layout,)))
    last = model.model.norm(streams[-1])
    is_answer = torch.zeros(len(tokens) + choice.depth, dtype=torch.bool, device=device)
    learned = torch.from_numpy(batch.targets) != IGNORED
    sources = torch.from_numpy(batch.sources)[learned].long().to(device)
    is_answer[sources + 1] = True
    says = torch.zeros_like(is_answer)
    best = (last[sources] @ model.model.embed_tokens.weight.T).argmax(-1)
    says[sources + 1] = best == tokens[sources + 1]
    taps = torch.cat([streams[tap] for tap in choice.taps], 1) if choice.taps else last[:, :0]
    documents = starts.cumsum(0)
    anchors = _anchors(is_answer[: len(tokens)], documents)
    return Read(tokens, positions, documents, taps, last, is_answer, says, anchors)


def draw(known: Read, choice: ExampleChoice, random: torch.Generator) -> Examples:
    """Up to `choice.most` anchors."""
    tokens, documents = known.tokens, known.documents
    chosen = torch.randperm(len(known.anchors), generator=random)[: choice.most].sort().values
    anchors = known.anchors[chosen.to(tokens.device, non_blocking=True)]
    places = anchors[:, None] + 1 + torch.arange(choice.depth, device=tokens.device)
    inside = places.clamp(max=len(tokens) - 1)
    same = (places < len(tokens)) & (documents[inside] == documents[anchors][:, None])
    counts = same & known.is_answer[places] & known.says[places]
    return Examples(
        tokens=tokens,
        positions=known.positions,
        documents=documents,
        taps=known.taps,
        last=known.last,
        anchors=anchors,
        labels=tokens[inside],
        counts=counts.long().cumprod(1).bool(),
    )


def examples(
    model: Qwen3, batch: TrainingBatch, choice: ExampleChoice, random: torch.Generator
) -> Examples:
    """Read a batch, and draw from it."""
    return draw(read(model, batch, choice), choice, random)


@final
class Pool:
    """The last `most` batches that were read: reading takes most of the time without a card."""

    def __init__(self, most: int) -> None:
        self._kept: deque[Read] = deque(maxlen=most)

    def add(self, one: Read) -> None:
        """Keep it; the oldest may go."""
        self._kept.append(one)

    def draw(self, choice: ExampleChoice, random: torch.Generator) -> Examples:
        """From one of those that are kept."""
        at = int(torch.randint(len(self._kept), (1,), generator=random))
        return draw(self._kept[at], choice, random)


def _anchors(is_answer: Tensor, documents: Tensor) -> Tensor:
    """Tokens of answers, none of them the first of its document."""
    follows = torch.zeros_like(is_answer)
    follows[1:] = documents[1:] == documents[:-1]
    return (is_answer & follows).nonzero()[:, 0]
