"""Which rows are penalised, and how.

Owns the arguments of a step. Must not know how they are applied.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """In tensors that keep their place from step to step; every one is [penalised].

    `rows` int64 are those of the logits, `slots` int64 those of the counts, all of them there.
    float32: `repetition` (1: none), `frequency` and `presence` (0: none).
    """

    rows: Tensor
    slots: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor
