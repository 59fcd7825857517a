"""The reading of a response's body, piece by piece, for as long as it shows life.

Must not know providers, nor what a piece means.
"""

import math
from collections.abc import Callable
from typing import Final

import trio

from protocol.errors import HermaError, ReadTimeout
from protocol.transport import Body

END_S: Final = 0.5
"""How long the end of a response is awaited after [DONE]: some servers keep it open."""

_LATE: Final = 0.01
"""A silence may be noticed late by this share of its limit. A deadline that moves with every event
would cost more than that precision is worth.
"""


async def read_body(
    body: Body,
    take: Callable[[bytes], bool],
    silence_s: float,
    is_life: Callable[[], bool] = lambda: True,
) -> None:
    """Call `take` with each piece of `body`. Once it returns True, no more is needed, and the end
    of the body is awaited for `END_S`, so that its connection can be used again. Raises what `take`
    raises, and `ReadTimeout` after `silence_s` without a piece after which `is_life()`.

    A failure of `take` ends the reading by cancellation, because httpx reads through nested
    generators: an exception in the loop would leave the inner ones to the garbage collector.
    """
    failure: HermaError | None = None
    is_done = False
    # Called directly on the clock, which halves the calls of `trio.current_time`.
    current_time = trio.lowlevel.current_clock().current_time
    margin_s = _LATE * silence_s
    move_at = current_time() + margin_s
    reading = trio.CancelScope(deadline=move_at + silence_s)

    def pass_on(data: bytes) -> bool:
        nonlocal failure, is_done, move_at
        now = current_time()
        if failure is not None:
            return False
        try:
            is_done = take(data)
        except HermaError as error:
            failure = error
            reading.cancel()
            return False
        # Asked only when the deadline is to move: nearly every event is an answer's part.
        if now >= move_at and is_life():
            move_at = now + margin_s
            reading.deadline = move_at + silence_s
        if is_done:
            move_at = math.inf
            reading.deadline = min(reading.deadline, now + END_S)
        return is_done

    with reading:
        await body.pass_to(pass_on)
    if failure is not None:
        raise failure
    if reading.cancelled_caught and not is_done:
        raise ReadTimeout(f"no part of an answer for {silence_s:g} s")
