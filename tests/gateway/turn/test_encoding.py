"""The threads for long prompts: whoever leaves at whatever moment, the place is given back."""

import threading

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway.turn.caller import Caller
from gateway.turn.encoding import Encoding
from tests.fakes.running_gateway import wait_until

SHORT = 100


async def hold_the_only_place(encoding: Encoding, release: threading.Event) -> None:
    await encoding.run(Caller(key="first"), SHORT, release.wait)


@pytest.mark.parametrize("leaves", ["before", "with", "after"])
async def test_a_request_that_leaves_when_its_turn_comes_gives_its_place_back(leaves: str) -> None:
    """A request whose client leaves between its turn and the task's next run gives its place
    back.
    """
    encoding, release, ran = Encoding(1), threading.Event(), list[str]()
    scope = trio.CancelScope()

    async def wait_and_leave() -> None:
        with scope:
            await encoding.run(Caller(key="second"), SHORT, lambda: ran.append("second"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold_the_only_place, encoding, release)
        await wait_all_tasks_blocked()
        nursery.start_soon(wait_and_leave)
        await wait_all_tasks_blocked()
        if leaves == "before":
            scope.cancel()
        if leaves == "with":
            begin_next = encoding._begin_next

            def begin_and_leave() -> None:
                begin_next()
                scope.cancel()

            encoding._begin_next = begin_and_leave  # type: ignore[method-assign] # the moment
        release.set()
        if leaves == "after":
            await wait_until(lambda: bool(ran))
            scope.cancel()
    with trio.fail_after(60):
        await encoding.run(Caller(key="third"), SHORT, lambda: ran.append("third"))
    assert ran[-1] == "third"
    assert repr(encoding) == "<Encoding <EncodingQueue: 0 work, 0 wait, 0 bytes>>"
