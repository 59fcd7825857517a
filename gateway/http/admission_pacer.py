"""How many requests may begin in one turn of the loop.

A thousand requests that come in the same instant would all be parsed, encoded and placed before the
loop looks at anything else, for a second or more, while every other stream stands still. Here a few
pass per turn, in the order in which they came. Owns that count and who waits. Must not know what a
request is.
"""

from typing import Final, final

import trio

PER_TURN: Final = 16
"""A short request takes a quarter of a millisecond of the loop. Many in one turn are cheaper than
few: their submissions leave together, so that the worker wakes once.
"""


@final
class AdmissionPacer:
    """Whoever finds a free place passes without a pause; every `PER_TURN`th passage asks the loop
    to free the places again in its next turn, and that is all that it costs while nobody waits.
    """

    def __init__(self) -> None:
        self._num_free = PER_TURN
        self._waiting = trio.lowlevel.ParkingLot()

    def may_pass(self) -> bool:
        """Pass if there is a place in this turn; who is told False has to `enter`."""
        if self._num_free == 0:
            return False
        self._num_free -= 1
        if self._num_free == 0:
            self._ask_for_turn()
        return True

    async def enter(self) -> None:
        """Return in this turn or, behind all who came before, in a later one."""
        if not self.may_pass():
            await self._waiting.park()

    def _ask_for_turn(self) -> None:
        trio.lowlevel.current_trio_token().run_sync_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._num_free = PER_TURN - len(self._waiting.unpark(count=PER_TURN))
        if self._num_free == 0:
            self._ask_for_turn()
