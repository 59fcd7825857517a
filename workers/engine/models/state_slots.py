"""The memory of recurrent states: a slot for each sequence, with what all layers keep of it.

Owns its layout and the copying of slots. Must not know which sequence has a slot, nor when one is
copied.
"""

from typing import NamedTuple

import torch

from kernels.delta_rule import DeltaPlan, DeltaState
from workers.engine.models.description import ModelConfig


class StateSlots:
    """`layers` holds the states of each layer that has some, in order, by slot. `matrices` float32
    [slots, layers, HV, K, V] and `tails` [slots, layers, rows, C]: a slot is contiguous.
    """

    def __init__(
        self, config: ModelConfig, num_slots: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Every page is written at once, so that resident memory does not grow with use; with NaN,
        so that what is read before it is written is found out.
        """
        rules = config.delta_rules
        slots = num_slots, len(rules)
        matrix, tail = (0, 0, 0), (0, 0)
        if rules:
            first, sizes = rules[0], rules[0].sizes
            matrix = first.num_value_heads, first.key_dim, first.value_dim
            tail = first.conv_width - 1, sizes.columns
        nan, wide = float("nan"), torch.float32
        self.matrices = torch.full((*slots, *matrix), nan, dtype=wide, device=device)
        self.tails = torch.full((*slots, *tail), nan, dtype=dtype, device=device)
        self.layers = tuple(
            [DeltaState(self.matrices[:, at], self.tails[:, at]) for at in range(len(rules))]
        )

    def copy(self, slot: int, source: "StateSlots", source_slot: int) -> None:
        """Fill a slot with one of `source`; on a card behind the steps in flight."""
        self.matrices[slot].copy_(source.matrices[source_slot])
        self.tails[slot].copy_(source.tails[source_slot])

    def num_bytes(self) -> int:
        """What it takes."""
        return self.matrices.nbytes + self.tails.nbytes


class Stop(NamedTuple):
    """On its way through a prompt a step keeps the state of `slot` as it is then, in slot `kept` of
    the prefixes. Then it goes on with these rows, which are those of `plan`.
    """

    slot: int
    kept: int
    rows: slice
    plan: DeltaPlan


class StateStep(NamedTuple):
    """The states that a forward pass moves on, and which rows move which: first those of `plan`,
    then those behind each of the `stops`, in their order, at which `prefixes` are kept.
    """

    states: StateSlots
    plan: DeltaPlan
    prefixes: StateSlots | None = None
    stops: tuple[Stop, ...] = ()

    def keep(self, layer: int, stop: Stop) -> None:
        """What one layer has of a state that is kept."""
        assert self.prefixes is not None
        for target, source in zip(
            self.prefixes.layers[layer], self.states.layers[layer], strict=True
        ):
            target[stop.kept].copy_(source[stop.slot])
