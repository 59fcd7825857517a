"""The memory of recurrent states: a slot for each sequence, with what all layers keep of it.

Owns its layout and the copying of slots. Must not know which sequence has a slot, nor when one is
copied.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from kernels.delta_rule import DeltaPlan, DeltaRing, DeltaState, VerifyPlan
from workers.engine.models.description import ModelConfig

Place: TypeAlias = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Takes memory for a tensor."""


MOST_TAKEN_BACK: Final = 15
"""Drafts of a sequence that a step verifies of a network with recurrent states, which keeps these
rows of all layers until the next step."""


class StateSlots:
    """`layers` holds the states of each layer that has some, in order, by slot. `matrices` float32
    [slots, layers, HV, K, V] and `tails` [slots, layers, rows, C]: a slot is contiguous.
    """

    def __init__(
        self, config: ModelConfig, num_slots: int, place: Place, dtype: torch.dtype
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
        nan = float("nan")
        self.matrices = place((*slots, *matrix), torch.float32).fill_(nan)
        self.tails = place((*slots, *tail), dtype).fill_(nan)
        self.layers = tuple(
            [DeltaState(self.matrices[:, at], self.tails[:, at]) for at in range(len(rules))]
        )

    def copy(self, slot: int, source: "StateSlots", source_slot: int) -> None:
        """Fill a slot with one of `source`; on a card behind the steps in flight."""
        self.matrices[slot].copy_(source.matrices[source_slot], non_blocking=True)
        self.tails[slot].copy_(source.tails[source_slot], non_blocking=True)

    def copy_layer(self, layer: int, slot: int, source: "StateSlots", source_slot: int) -> None:
        """The same of one layer."""
        for target, found in zip(self.layers[layer], source.layers[layer], strict=True):
            target[slot].copy_(found[source_slot], non_blocking=True)

    def num_bytes(self) -> int:
        """What it takes."""
        return self.matrices.nbytes + self.tails.nbytes


class PrefixSlots(NamedTuple):
    """The states of prefixes: the first slots are the card's, those behind them the host's. The
    host reads none, so copies need no other order than the card's.
    """

    on_device: StateSlots
    on_host: StateSlots | None = None

    def at(self, slot: int) -> tuple[StateSlots, int]:
        """Where a slot lies, and its number there."""
        num_first = len(self.on_device.matrices)
        if self.on_host is None or slot < num_first:
            return self.on_device, slot
        return self.on_host, slot - num_first


class Stop(NamedTuple):
    """On its way through a prompt a step keeps the state of `slot` as it is then, in slot `kept` of
    the prefixes. Then it goes on with these rows, which are those of `plan`.
    """

    slot: int
    kept: int
    rows: slice
    plan: DeltaPlan


def rings_of(
    config: ModelConfig, num_slots: int, num_rows: int, place: Place, dtype: torch.dtype
) -> tuple[DeltaRing, ...]:
    """A ring for each layer that has states, of `num_rows` rows of a sequence that may be taken
    back; filled with NaN, as states are.
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
    """The spans of a forward pass whose rows may be taken back, and the `rings` of all layers that
    keep these.
    """

    rings: tuple[DeltaRing, ...]
    plan: VerifyPlan


class StateStep(NamedTuple):
    """The states that a forward pass moves on, and which rows move which: those of `plan`, some of
    them `verified`, then those behind each of the `stops`, in their order, at which `prefixes` are
    kept.
    """

    states: StateSlots
    plan: DeltaPlan
    prefixes: PrefixSlots | None = None
    stops: tuple[Stop, ...] = ()
    verified: Verified | None = None

    def keep(self, layer: int, stop: Stop) -> None:
        """What one layer has of a state that is kept."""
        assert self.prefixes is not None
        slots, slot = self.prefixes.at(stop.kept)
        slots.copy_layer(layer, slot, self.states, stop.slot)
