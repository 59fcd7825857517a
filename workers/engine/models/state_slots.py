"""The memory of recurrent states: a slot holds the states of one sequence in all layers.

Owns the layout of slots and their copying. Must not know which sequence has a slot, nor when one is
copied.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from kernels.delta_rule import DeltaPlan, DeltaRing, DeltaState, VerifyPlan
from workers.engine.models.description import ModelDescription

Place: TypeAlias = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Allocates a tensor of a shape and a dtype."""


MOST_TAKEN_BACK: Final = 15
"""The most drafts of a sequence that a step of a network with recurrent states verifies. Every
layer keeps their rows until the next step, which may take them back."""


class StateSlots:
    """The states of `num_slots` slots: `matrices` float32 [slots, layers, HV, K, V] and `tails`
    [slots, layers, rows, C]. A slot is contiguous. `layers` has a view of each recurrent layer.
    """

    def __init__(
        self, config: ModelDescription, num_slots: int, place: Place, dtype: torch.dtype
    ) -> None:
        """Fills all memory with NaN: every page is resident from the start, and a read before a
        write shows.
        """
        rules = config.delta_rules
        slots = num_slots, len(rules)
        matrix, tail = (0, 0, 0), (0, 0)
        if rules:
            first, sizes = rules[0], rules[0].sizes
            matrix = first.num_value_heads, first.key_dim, first.value_dim
            tail = first.conv_width - 1, sizes.columns
        nan = float("nan")
        self.matrices = place((*slots, *matrix), torch.float32).fill_(nan)
        self.tails = place((*slots, *tail), dtype).fill_(nan)
        self.layers = tuple(
            [DeltaState(self.matrices[:, at], self.tails[:, at]) for at in range(len(rules))]
        )

    def copy(self, slot: int, source: "StateSlots", source_slot: int) -> None:
        """Copy a slot of `source` into `slot`; on a card behind the steps in flight."""
        self.matrices[slot].copy_(source.matrices[source_slot], non_blocking=True)
        self.tails[slot].copy_(source.tails[source_slot], non_blocking=True)

    def copy_layer(self, layer: int, slot: int, source: "StateSlots", source_slot: int) -> None:
        """Copy one layer of a slot of `source` into `slot`."""
        for target, found in zip(self.layers[layer], source.layers[layer], strict=True):
            target[slot].copy_(found[source_slot], non_blocking=True)

    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return self.matrices.nbytes + self.tails.nbytes


class Stop(NamedTuple):
    """A stop of a step within a prompt: each layer copies the state of `slot` to slot `kept` of the
    prefixes, then computes the rows `rows`, by `plan`.
    """

    slot: int
    kept: int
    rows: slice
    plan: DeltaPlan


def rings_of(
    config: ModelDescription, num_slots: int, num_rows: int, place: Place, dtype: torch.dtype
) -> tuple[DeltaRing, ...]:
    """A ring for each recurrent layer: in each slot, `num_rows` rows that may be taken back. Filled
    with NaN, as states are.
    """
    nan, held = float("nan"), (num_slots, num_rows)
    return tuple(
        [
            DeltaRing(
                place((*held, rule.sizes.columns), dtype).fill_(nan),
                place((*held, 2 * rule.num_value_heads), dtype).fill_(nan),
            )
            for rule in config.delta_rules
        ]
    )


class Verified(NamedTuple):
    """The `plan` of the spans whose rows may be taken back, and the `rings`, by layer, that keep
    these rows.
    """

    rings: tuple[DeltaRing, ...]
    plan: VerifyPlan


class StateStep(NamedTuple):
    """The states that a forward pass moves on, and which rows move which. First the rows of `plan`,
    some of them `verified`; then those of each of the `stops`, in order, where states are copied to
    `prefixes`.
    """

    states: StateSlots
    plan: DeltaPlan
    prefixes: StateSlots | None = None
    stops: tuple[Stop, ...] = ()
    verified: Verified | None = None

    def keep(self, layer: int, stop: Stop) -> None:
        """Copy one layer's state at a stop."""
        assert self.prefixes is not None
        self.prefixes.copy_layer(layer, stop.kept, self.states, stop.slot)
