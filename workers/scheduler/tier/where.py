"""Where a block of the prefix cache lies, and what may happen to it there.

Owns the table of states: every pair of a state and an event has a next state or is refused. A
recurrent state occupies a slot of the card as keys and values occupy a block; both follow this
table. Must not know pages, sequences or copies.
"""

from enum import Enum
from typing import Final

from workers.scheduler.integrity import IntegrityError


class Where(Enum):
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
        return self not in (Where.NOWHERE, Where.CARD)

    @property
    def may_leave_host(self) -> bool:
        """Whether its pages can be given to another: an entry that is copied keeps them."""
        return self in _AT_REST


_AT_REST: Final = frozenset({Where.BOTH, Where.HOST})
_ON_CARD: Final = frozenset({Where.CARD, Where.STORING, Where.BOTH, Where.TWICE})


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


NEXT: Final[dict[tuple[Where, BlockEvent], Where]] = {
    (Where.NOWHERE, BlockEvent.COMPUTED): Where.CARD,
    (Where.CARD, BlockEvent.LEFT_CARD): Where.NOWHERE,
    (Where.CARD, BlockEvent.STORE): Where.STORING,
    (Where.STORING, BlockEvent.LEFT_CARD): Where.PARTING,
    (Where.STORING, BlockEvent.STORED): Where.BOTH,
    (Where.STORING, BlockEvent.FAILED): Where.CARD,
    (Where.PARTING, BlockEvent.COMPUTED): Where.STORING,
    (Where.PARTING, BlockEvent.STORED): Where.HOST,
    (Where.PARTING, BlockEvent.FAILED): Where.NOWHERE,
    (Where.BOTH, BlockEvent.LEFT_CARD): Where.HOST,
    (Where.BOTH, BlockEvent.LEFT_HOST): Where.CARD,
    (Where.HOST, BlockEvent.COMPUTED): Where.BOTH,
    (Where.HOST, BlockEvent.LOAD): Where.LOADING,
    (Where.HOST, BlockEvent.LEFT_HOST): Where.NOWHERE,
    (Where.LOADING, BlockEvent.COMPUTED): Where.TWICE,
    (Where.LOADING, BlockEvent.SPOILT): Where.NOWHERE,
    (Where.LOADING, BlockEvent.FAILED): Where.HOST,
    (Where.TWICE, BlockEvent.LEFT_CARD): Where.LOADING,
    (Where.TWICE, BlockEvent.LOADED): Where.BOTH,
    (Where.TWICE, BlockEvent.SPOILT): Where.CARD,
    (Where.TWICE, BlockEvent.FAILED): Where.BOTH,
}
"""Pairs that are not here cannot happen."""


def follow(where: Where, event: BlockEvent) -> Where:
    """The next state. Raises `IntegrityError` for a pair that cannot happen."""
    found = NEXT.get((where, event))
    if found is None:
        raise IntegrityError(f"a block that is {where.value} cannot be met by: {event.value}")
    return found
