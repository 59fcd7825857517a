"""Which tensors weights are made of, however they are nested.

Owns their order. Must not know what is done with them.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Final

from torch import Tensor

from workers.engine.drafting.dflash import DFlash
from workers.engine.drafting.eagle3 import Eagle3Cell
from workers.engine.drafting.mtp import MtpCell
from workers.engine.drafting.recurrent import RecurrentDrafter
from workers.engine.drafting.weights import DraftingHead
from workers.engine.models.network import Network

_DRAFTERS: Final = (DFlash, DraftingHead, Eagle3Cell, MtpCell, RecurrentDrafter)


def tensors_of(weights: Any) -> Iterator[Tensor]:  # noqa: ANN401 - weights are nested in many ways
    """All tensors of weights, or of a drafter, in an order that is always the same. A drafter's
    include what it shares with its target, and what it computes from weights once.
    """
    if isinstance(weights, Tensor):
        yield weights
    elif isinstance(weights, tuple):
        for part in weights:
            yield from tensors_of(part)
    elif is_dataclass(weights):
        for field in fields(weights):
            yield from tensors_of(getattr(weights, field.name))
    elif isinstance(weights, Network):
        yield from tensors_of(weights.weights)
    elif isinstance(weights, _DRAFTERS):
        for part in vars(weights).values():
            yield from tensors_of(part)
