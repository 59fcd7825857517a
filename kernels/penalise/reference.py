"""Plain torch penalties; the CPU path, and the definition."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """Which rows are penalised, and how, in tensors at fixed addresses; every one is [penalised].

    `rows` int64 are rows of the logits, `slots` int64 rows of the counts; all of them exist.
    float32: `repetition` (1: none), `frequency` and `presence` (0: none).
    """

    rows: Tensor
    slots: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor


MAX_OUTPUTS: Final = 2**15 - 1
IN_PROMPT: Final = -(2**15)


def penalise(logits: Tensor, counts: Tensor, penalties: Penalties, out: Tensor) -> None:
    """See `kernels.penalise.penalise`."""
    out.copy_(logits.index_select(0, penalties.rows))
    words = counts.index_select(0, penalties.slots)
    # Most of a vocabulary was never seen.
    places = words.nonzero(as_tuple=True)
    outputs, values = (words[places] & MAX_OUTPUTS).float(), out[places]
    factor = penalties.repetition[places[0]]
    values = torch.where(values > 0, values / factor, values * factor)
    values = values - penalties.frequency[places[0]] * outputs
    out[places] = values - penalties.presence[places[0]] * (outputs > 0)


def count(ids: Tensor, counts: Tensor, penalties: Penalties) -> None:
    """See `kernels.penalise.count`."""
    vocab_size = counts.shape[1]
    said = ids[penalties.rows]
    places = penalties.slots, said.clamp(0, vocab_size - 1)
    words = counts[places]
    grows = (said >= 0) & (said < vocab_size) & ((words & MAX_OUTPUTS) < MAX_OUTPUTS)
    counts[places] = words + grows


def mark(entries: Tensor, counts: Tensor) -> None:
    """See `kernels.penalise.mark`."""
    num_slots, vocab_size = counts.shape
    slots, tokens, words = entries.view(-1, 3).long().unbind(1)
    good = (slots >= 0) & (slots < num_slots) & (tokens >= 0) & (tokens < vocab_size)
    slots, tokens = slots[good], tokens[good]
    counts[slots, tokens] |= words[good].to(counts.dtype)
