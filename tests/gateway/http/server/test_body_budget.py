"""The memory for bodies: who may read on, and what the others do meanwhile."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.http.server.body_budget import SMALL_BODY_BYTES, WAIT_S, BodyBudget, BodyHold
from gateway.http.server.read_deadlines import Deadlines
from tests.fakes.wired import Echo, statuses, wired

PART = 2**16
SHARED, SMALL = 16 * PART, 4 * PART


class Body:
    """A body of so many parts, which reads while it may."""

    def __init__(self, budget: BodyBudget, num_parts: int, peer: str = "") -> None:
        self.hold = BodyHold(budget, peer, self.resume, num_parts * PART)
        self.num_left = num_parts
        self.may_read = True

    def resume(self) -> None:
        self.may_read = True

    def read(self) -> None:
        if self.num_left and self.may_read and self.hold.may_read(0.0):
            self.num_left -= 1
            self.hold.grow_to(self.hold.num_bytes + PART)
        else:
            self.may_read = False


def test_within_the_room_all_read() -> None:
    budget = BodyBudget(SHARED, SMALL)
    bodies = [Body(budget, 4) for _ in range(4)]
    for _ in range(4):
        for body in bodies:
            body.read()
    assert not any(body.num_left for body in bodies)
    assert budget.num_bytes == SHARED


def test_bodies_of_which_each_has_a_part_end_one_after_the_other() -> None:
    """Twenty that would each fill the room: one reads to its end, then the next."""
    budget = BodyBudget(SHARED, 0)
    bodies = [Body(budget, 20) for _ in range(20)]
    done = 0
    most = 0
    for _ in range(20 * 20 + 20):
        for body in bodies:
            body.read()
            most = max(most, budget.num_bytes)
            if not body.num_left and not body.hold.is_over:
                done += 1
                body.hold.end()
    assert done == 20
    assert most <= SHARED + 20 * PART
    assert budget.num_bytes == 0


def test_a_small_body_passes_large_ones() -> None:
    budget = BodyBudget(SHARED, SMALL)
    large = [Body(budget, SMALL_BODY_BYTES // PART + 20) for _ in range(3)]
    for _ in range(40):
        for body in large:
            body.read()
    assert len([body for body in large if body.num_left]) == 2
    small = Body(budget, 2)
    small.read()
    small.read()
    assert not small.num_left


def test_the_next_to_read_is_of_the_peer_who_holds_least() -> None:
    budget = BodyBudget(SHARED, 0)
    much = [Body(budget, 50, "much") for _ in range(6)]
    for _ in range(10):
        for body in much:
            body.read()
    other = Body(budget, 50, "other")
    other.read()
    assert other.hold.waits_since is not None
    next(body for body in much if not body.num_left or body.may_read).hold.end()
    assert other.may_read


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["read", "end"]), st.sampled_from("ab")),
        max_size=200,
    )
)
def test_the_room_is_kept_and_nobody_is_forgotten(acts: list[tuple[int, str, str]]) -> None:
    """However bodies come and go: the sum is what they hold, at most the room and one body, and
    while any waits one may read.
    """
    budget = BodyBudget(4 * PART, 0)
    bodies: dict[int, Body] = {}
    for at, act, peer in acts:
        body = bodies.get(at)
        if body is None:
            body = bodies[at] = Body(budget, 12, peer)
        if act == "read":
            body.read()
        else:
            bodies.pop(at).hold.end()
        held = [one.hold.num_bytes for one in bodies.values()]
        assert budget.num_bytes == sum(held)
        assert budget.num_bytes <= 4 * PART + 12 * PART
        waiting = [one for one in bodies.values() if one.hold.waits_since is not None]
        if waiting:
            assert len(waiting) < len(bodies)


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_body_without_room_waits_in_its_socket_and_then_is_503(
    autojump_clock: MockClock, framing: str
) -> None:
    """A body without room waits in its socket, then gets 503; the client's silence does not count
    while the server does not read.
    """
    budget = BodyBudget(0, 0)
    first = BodyHold(budget, "", lambda: None, None)
    assert first.may_read(0.0)
    head = b"POST /a HTTP/1.1\r\nhost: x\r\n"
    if framing == "length":
        data = head + b"content-length: 200000\r\n\r\n" + bytes(100)
    else:
        data = head + b"transfer-encoding: chunked\r\n\r\n30d40\r\n" + bytes(100)
    deadlines = Deadlines(body_silence_s=5)
    app = Echo()
    async with wired(app, budget=budget, deadlines=deadlines) as peer:
        await peer.send(data)
        await wait_all_tasks_blocked()
        await peer.send(bytes(1000))
        await wait_all_tasks_blocked()
        assert budget.num_bytes == 100
        answer = await peer.rest()
    assert statuses(answer) == [503]
    assert b"retry-after" in answer.lower()
    assert WAIT_S <= trio.current_time() <= WAIT_S + 5
    assert app.asked == []
    assert budget.num_bytes == 0


async def test_a_body_that_waited_is_read_once_there_is_room(autojump_clock: MockClock) -> None:
    budget = BodyBudget(0, 0)
    first = BodyHold(budget, "", lambda: None, None)
    assert first.may_read(0.0)
    async with wired(Echo(), budget=budget) as peer:
        await peer.send(
            b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3000\r\n\r\n" + bytes(1000)
        )
        await wait_all_tasks_blocked()
        await peer.send(b"x" * 2000)
        await trio.sleep(20)
        assert budget.num_bytes == 1000
        first.end()
        answer = await peer.until(b"xxx")
    assert statuses(answer) == [200]
    assert budget.num_bytes == 0
