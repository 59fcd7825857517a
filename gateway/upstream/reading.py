"""The body of a provider's response, as it comes.

Owns how long a provider may be silent, in one scope for the whole body. Must not know what the
bytes mean.
"""

import math
from collections.abc import AsyncIterable, Callable
from typing import Final

import trio

from protocol.errors import HermaError, ReadTimeout

END_S: Final = 0.5
"""Some servers say [DONE] and keep the response open."""

_LATE: Final = 0.01
"""A silence ends by this share of it late: moving a deadline at every event would cost more than
to know it that well.
"""


async def read_body(
    body: AsyncIterable[bytes], take: Callable[[bytes], bool], silence_s: float
) -> None:
    """Give `body` to `take` as it comes; what that raises is raised once reading has ended.

    Once `take` says that nothing more is needed, the end of the body gets `END_S`: its connection
    can be used again then. Raises `ReadTimeout` after `silence_s` without a byte.

    httpx reads through nested generators, which only end in order when the innermost is
    cancelled: an exception in the loop would leave the inner ones to the garbage collector.
    """
    failure: HermaError | None = None
    is_done = False
    # Half the calls of `trio.current_time`, which looks its clock up.
    current_time = trio.lowlevel.current_clock().current_time
    margin_s = _LATE * silence_s
    move_at = 0.0
    with trio.CancelScope() as reading:
        reading.deadline = current_time() + silence_s
        async for data in body:
            now = current_time()
            if now >= move_at:
                move_at = now + margin_s
                reading.deadline = move_at + silence_s
            if failure is not None:
                continue
            try:
                is_done = take(data)
            except HermaError as error:
                failure = error
                reading.cancel()
            if is_done:
                move_at = math.inf
                reading.deadline = min(reading.deadline, now + END_S)
    if failure is not None:
        raise failure
    if reading.cancelled_caught and not is_done:
        raise ReadTimeout(f"no byte for {silence_s:g} s")
