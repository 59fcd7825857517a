"""Every pair of a state and an event has a next state or is refused."""

from itertools import product

import pytest

from workers.scheduler.integrity import IntegrityError
from workers.scheduler.tier import BlockEvent, Where, follow
from workers.scheduler.tier.where import NEXT


def test_each_pair_is_in_the_table_or_refused() -> None:
    for where, event in product(Where, BlockEvent):
        if (where, event) in NEXT:
            assert follow(where, event) is NEXT[where, event]
        else:
            with pytest.raises(IntegrityError, match=where.value):
                follow(where, event)


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
    assert {after for _, after in NEXT.items()} == set(Where)
    assert {before for before, _ in NEXT} == set(Where)
