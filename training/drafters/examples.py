"""What a drafter learns from: states of the model, and anchors with the tokens behind them.

Owns the choice of anchors and which drafts count. Must not know drafters.

The model reads its own training data. Where its best token is the text's, the text is what it would
say; a draft behind a token where it would say another counts no more.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from training.attention import Layout, document_mask
from training.model import Qwen3
from training.pack import IGNORED, Batch


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


class Choice(NamedTuple):
    """What is taken of a batch: these layers' states, so many drafts behind each of up to `most`
    anchors. Its rows have `row_length` tokens.
    """

    taps: tuple[int, ...]
    depth: int
    most: int
    row_length: int


@torch.no_grad()
def examples(model: Qwen3, batch: Batch, choice: Choice, random: torch.Generator) -> Examples:
    """Those of a batch without a long row."""
    taps, depth, most, row_length = choice
    tokens, positions = (torch.from_numpy(part).long() for part in (batch.tokens, batch.positions))
    device = model.model.norm.weight.device
    tokens, positions = tokens.to(device), positions.to(device)
    starts = torch.zeros_like(tokens)
    bounds = torch.from_numpy(batch.bounds).long().to(device)
    starts[bounds[bounds < len(tokens)]] = 1
    documents = starts.cumsum(0)
    # A mask counts documents by their first positions, and positions may have gaps.
    mask = document_mask(1 - starts, row_length)
    layout = Layout(bounds.int(), mask, row_length, len(tokens))
    streams = list(model.streams(tokens, positions, (layout,)))
    last = model.model.norm(streams[-1])
    is_answer = torch.zeros(len(tokens) + depth, dtype=torch.bool, device=device)
    learned = torch.from_numpy(batch.targets) != IGNORED
    sources = torch.from_numpy(batch.sources)[learned].long().to(device)
    is_answer[sources + 1] = True
    says = torch.zeros(len(tokens) + depth, dtype=torch.bool, device=device)
    best = (last[sources] @ model.model.embed_tokens.weight.T).argmax(-1)
    says[sources + 1] = best == tokens[sources + 1]
    anchors = _anchors(is_answer[: len(tokens)], documents, most, random)
    places = anchors[:, None] + 1 + torch.arange(depth, device=device)
    inside = places.clamp(max=len(tokens) - 1)
    same = (places < len(tokens)) & (documents[inside] == documents[anchors][:, None])
    counts = (same & is_answer[places] & says[places]).long().cumprod(1).bool()
    return Examples(
        tokens=tokens,
        positions=positions,
        documents=documents,
        taps=torch.cat([streams[tap] for tap in taps], 1) if taps else last[:, :0],
        last=last,
        anchors=anchors,
        labels=tokens[inside],
        counts=counts,
    )


def _anchors(is_answer: Tensor, documents: Tensor, most: int, random: torch.Generator) -> Tensor:
    """Tokens of answers, none of them the first of its document."""
    follows = torch.zeros_like(is_answer)
    follows[1:] = documents[1:] == documents[:-1]
    found = (is_answer & follows).nonzero()[:, 0]
    chosen = torch.randperm(len(found), generator=random)[:most].to(found.device)
    return found[chosen].sort().values
