"""Log-probabilities of the tokens of a prompt.

Owns the way from the hidden states of a chunk to the scores of the tokens behind its positions.
Must not know plans or messages' order.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kernels.sample import logprobs
from protocol.messages import TokenLogprobs
from workers.engine.models.network import Network
from workers.engine.step.batch import SequenceState

Scores: TypeAlias = tuple[int, int, tuple[TokenLogprobs, ...]]
"""A sequence, the position of a token of its prompt, and the scores from there on."""

_ROWS_AT_ONCE: Final = 128
"""Rows whose logits exist at a time: 80 MB of float32 for a vocabulary of 152k."""


def score_prompt(
    network: Network, hidden: Tensor, start: int, state: SequenceState
) -> Scores | None:
    """The scores of the prompt tokens that follow the positions [start, start + T), of which
    `hidden` [T, hidden] are the last hidden states; None if no token of the prompt does. They are
    the log-softmax in float32 of the raw logits.
    """
    num_rows = min(len(hidden), state.num_prompt - 1 - start)
    if num_rows <= 0:
        return None
    num_top = min(state.num_top or 0, network.config.vocab_size)
    ids = np.array(state.tokens[start + 1 : start + 1 + num_rows], np.int64)
    wanted = torch.from_numpy(ids).to(hidden.device)
    found: list[TokenLogprobs] = []
    rows = torch.split(hidden[:num_rows], _ROWS_AT_ONCE)
    for part, own in zip(rows, torch.split(wanted, _ROWS_AT_ONCE), strict=True):
        scores = logprobs(network.logits(part), own, num_top)
        chosen, values, best = (tensor.tolist() for tensor in scores)
        found += [
            TokenLogprobs(one, tuple(zip(best[at], values[at], strict=True)))
            for at, one in enumerate(chosen)
        ]
    return state.seq, start + 1, tuple(found)
