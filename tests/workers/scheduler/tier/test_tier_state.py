"""Every pair of a state and an event has a next state or is refused."""

from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import pytest

from tests.fakes.life_tables import Life
from workers.scheduler.integrity import IntegrityError
from workers.scheduler.tier import BlockEvent, TierState, follow
from workers.scheduler.tier.tier_state import NEXT


def test_each_pair_is_in_the_table_or_refused() -> None:
    for state, event in product(TierState, BlockEvent):
        if (state, event) in NEXT:
            assert follow(state, event) is NEXT[state, event]
        else:
            with pytest.raises(IntegrityError, match=state.value):
                follow(state, event)


def test_the_tiers_change_only_as_the_event_says() -> None:
    """A copy to one tier takes nothing from the other; only what leaves a tier is gone there."""
    for (before, event), after in NEXT.items():
        came, went = event is BlockEvent.COMPUTED, event is BlockEvent.LEFT_CARD
        if before.is_on_card != after.is_on_card:
            assert (came, went) == (after.is_on_card, before.is_on_card)
        if before.is_on_host and not after.is_on_host:
            assert event in (BlockEvent.FAILED, BlockEvent.SPOILT, BlockEvent.LEFT_HOST)
        if after.is_on_host and not before.is_on_host:
            assert event is BlockEvent.STORE


def test_every_state_is_reached_and_left() -> None:
    assert {after for _, after in NEXT.items()} == set(TierState)
    assert {before for before, _ in NEXT} == set(TierState)


@dataclass(frozen=True)
class Flags:
    """The tiers that hold a block whole, and the copy under way."""

    on_card: bool = False
    on_host: bool = False
    copy: Literal["", "to host", "to card"] = ""

    def possible(self) -> set[BlockEvent]:
        """What can happen. A copy to the card is over well once the card's cache has the block."""
        e = BlockEvent
        loads, rests = self.copy == "to card", self.on_host and not self.copy
        can = {
            e.COMPUTED: not self.on_card,
            e.LEFT_CARD: self.on_card,
            e.STORE: self.on_card and not (self.on_host or self.copy),
            e.STORED: self.copy == "to host",
            e.LOAD: rests and not self.on_card,
            e.LOADED: loads and self.on_card,
            e.SPOILT: loads,
            e.FAILED: bool(self.copy),
            e.LEFT_HOST: rests,
        }
        return {event for event, can_be in can.items() if can_be}

    def after(self, event: BlockEvent) -> "Flags":
        match event:
            case BlockEvent.COMPUTED | BlockEvent.LEFT_CARD:
                return replace(self, on_card=event is BlockEvent.COMPUTED)
            case BlockEvent.STORE:
                return replace(self, copy="to host")
            case BlockEvent.LOAD:
                return replace(self, copy="to card")
            case BlockEvent.STORED:
                return replace(self, on_host=True, copy="")
            case BlockEvent.LOADED | BlockEvent.FAILED:
                return replace(self, copy="")
            case _:
                return replace(self, on_host=False, copy="")


def _agrees(state: TierState, flags: Flags) -> bool:
    """Whether the state and what is asked of it say what the flags say."""
    named = {
        (False, False, ""): TierState.NOWHERE,
        (True, False, ""): TierState.CARD,
        (True, False, "to host"): TierState.STORING,
        (False, False, "to host"): TierState.PARTING,
        (True, True, ""): TierState.BOTH,
        (False, True, ""): TierState.HOST,
        (False, True, "to card"): TierState.LOADING,
        (True, True, "to card"): TierState.TWICE,
    }
    asked = state.is_on_card, state.is_on_host, state.may_leave_host
    return named.get((flags.on_card, flags.on_host, flags.copy)) is state and asked == (
        flags.on_card,
        flags.on_host or bool(flags.copy),
        flags.on_host and not flags.copy,
    )


LIFE = Life(NEXT, TierState.NOWHERE, Flags(), _agrees)


def test_every_walk_agrees_with_a_model_of_flags() -> None:
    """All states and all entries of the table are reached, and no others."""
    LIFE.check_walks()


def test_every_planted_fault_is_found() -> None:
    """An entry that is missing, wrong or too much, swapped states, a lost event."""
    LIFE.check_faults()
