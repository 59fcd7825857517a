"""The tiers that hold a block of the prefix cache, and the events that change them.

Owns the table of states: every pair of a state and an event has a next state or is refused. A
recurrent state occupies a slot of the card as keys and values occupy a block; both follow this
table. Must not know pages, sequences or copies.
"""

from enum import Enum
from typing import Final

from workers.scheduler.integrity import IntegrityError


class TierState(Enum):
    """The tiers that hold a block, and the copy that is under way.

    - `STORING`: the card holds it, and it is copied to the host. `PARTING`: the same, but the
      card's block has another owner by now. The copy reads what the card held before that.
    - `LOADING`: the host holds it, and it is copied to the card. `TWICE`: the same, and the card
      has computed it meanwhile.
    """

    NOWHERE = "nowhere"
    CARD = "card"
    STORING = "storing"
    PARTING = "parting"
    BOTH = "both"
    HOST = "host"
    LOADING = "loading"
    TWICE = "twice"

    __hash__ = object.__hash__  # by identity: Enum's own hash is a Python call, two per block

    @property
    def is_on_card(self) -> bool:
        """Whether a step that is planned now can read it."""
        return self in _ON_CARD

    @property
    def is_on_host(self) -> bool:
        """Whether pages of the host belong to it, also while it is copied there."""
        return self not in (TierState.NOWHERE, TierState.CARD)

    @property
    def may_leave_host(self) -> bool:
        """Whether its pages can be given to another: an entry that is copied keeps them."""
        return self in _AT_REST


_AT_REST: Final = frozenset({TierState.BOTH, TierState.HOST})
_ON_CARD: Final = frozenset({TierState.CARD, TierState.STORING, TierState.BOTH, TierState.TWICE})


class BlockEvent(Enum):
    """What happens to a block.

    `COMPUTED` and `LEFT_CARD`: it comes into the card's prefix cache, or leaves it. `LOADED`
    follows `COMPUTED`: what was loaded is in that cache. `SPOILT`: what was loaded is not what
    was stored. `FAILED`: the copy was not made.
    """

    COMPUTED = "computed"
    LEFT_CARD = "left the card"
    STORE = "a store begins"
    STORED = "stored"
    LOAD = "a load begins"
    LOADED = "loaded"
    SPOILT = "spoilt"
    FAILED = "failed"
    LEFT_HOST = "left the host"

    __hash__ = object.__hash__


NEXT: Final[dict[tuple[TierState, BlockEvent], TierState]] = {
    (TierState.NOWHERE, BlockEvent.COMPUTED): TierState.CARD,
    (TierState.CARD, BlockEvent.LEFT_CARD): TierState.NOWHERE,
    (TierState.CARD, BlockEvent.STORE): TierState.STORING,
    (TierState.STORING, BlockEvent.LEFT_CARD): TierState.PARTING,
    (TierState.STORING, BlockEvent.STORED): TierState.BOTH,
    (TierState.STORING, BlockEvent.FAILED): TierState.CARD,
    (TierState.PARTING, BlockEvent.COMPUTED): TierState.STORING,
    (TierState.PARTING, BlockEvent.STORED): TierState.HOST,
    (TierState.PARTING, BlockEvent.FAILED): TierState.NOWHERE,
    (TierState.BOTH, BlockEvent.LEFT_CARD): TierState.HOST,
    (TierState.BOTH, BlockEvent.LEFT_HOST): TierState.CARD,
    (TierState.HOST, BlockEvent.COMPUTED): TierState.BOTH,
    (TierState.HOST, BlockEvent.LOAD): TierState.LOADING,
    (TierState.HOST, BlockEvent.LEFT_HOST): TierState.NOWHERE,
    (TierState.LOADING, BlockEvent.COMPUTED): TierState.TWICE,
    (TierState.LOADING, BlockEvent.SPOILT): TierState.NOWHERE,
    (TierState.LOADING, BlockEvent.FAILED): TierState.HOST,
    (TierState.TWICE, BlockEvent.LEFT_CARD): TierState.LOADING,
    (TierState.TWICE, BlockEvent.LOADED): TierState.BOTH,
    (TierState.TWICE, BlockEvent.SPOILT): TierState.CARD,
    (TierState.TWICE, BlockEvent.FAILED): TierState.BOTH,
}
"""Pairs that are not here cannot happen."""


def follow(state: TierState, event: BlockEvent) -> TierState:
    """The next state. Raises `IntegrityError` for a pair that cannot happen."""
    found = NEXT.get((state, event))
    if found is None:
        raise IntegrityError(f"a block that is {state.value} cannot be met by: {event.value}")
    return found
