"""The messages between the host tier and the copies: what to copy, and what was copied.

Owns the frozen values that cross that seam. Must not know how a device copies.
"""

from __future__ import annotations

import msgspec


class Copy(msgspec.Struct, frozen=True, gc=False):
    """One block of keys and values, in the card's block `place`; or one recurrent state, in slot
    `place` of the prefix states if `is_state`. It fills `pages` of the host, first to last.
    """

    place: int
    pages: tuple[int, ...]
    is_state: bool = False


class Transfer(msgspec.Struct, frozen=True, gc=False):
    """Copies in one direction. A store reads the card as the steps launched so far leave it, and a
    load writes behind them.
    """

    number: int
    is_load: bool
    copies: tuple[Copy, ...]


class Transferred(msgspec.Struct, frozen=True, gc=False):
    """A transfer that is over: for each copy the checksums of what its pages hold now. `error` is
    the reason why nothing was copied; then there are no checksums.
    """

    number: int
    checksums: tuple[tuple[int, ...], ...]
    error: str = ""
