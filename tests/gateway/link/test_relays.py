"""Exchanges of text over links: order, credit, ends, and what a worker must not do."""

from collections.abc import Sequence

import pytest
import trio
import trio.lowlevel
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from gateway.link.attempts import Attempt, Lost
from gateway.link.relays import UPLOAD_ROOM_BYTES, RelayAttempt, RelayClient
from gateway.routing import Lease
from protocol.errors import HttpError
from protocol.ids import RequestId, WorkerId
from protocol.messages import (
    RELAY_CHUNK_BYTES,
    RELAY_WINDOW_BYTES,
    Finished,
    Rejected,
    Relay,
    RelayChunk,
    RelayCredit,
    RelayData,
    RelayEnd,
    RelayHead,
    RelayTaken,
)

ID, WORKER = RequestId(b"r" * 16), WorkerId(b"w" * 16)
HEAD = RelayHead(ID, 1, 200, (("content-type", "text/plain"),))


def attempt() -> RelayAttempt:
    return RelayAttempt(Lease(1, WORKER, 0, ""), ID, 1, None)


def data(offset: int, size: int) -> RelayData:
    return RelayData(ID, 1, offset, bytes(size))


def test_bytes_in_their_order_and_a_whole_end() -> None:
    """What the engine takes of the request is a sign of life; bytes are none before `begin`."""
    relay = attempt()
    assert relay.take(RelayTaken(ID, 1, 0)) is None
    assert (relay.num_signs, relay.expected) == (1, 0)
    assert relay.take(HEAD) is None
    assert relay.take(data(0, 5)) is None
    assert relay.take(data(5, 7)) is None
    assert relay.take(RelayEnd(ID, 1, 12)) is None
    assert isinstance(relay.outcome, Finished)
    assert relay.outcome.reason == "stop"
    assert relay.read() == bytes(12)


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([HEAD, data(3, 5)], "3 came where 0"),
        ([data(0, 5)], "0 came where 0"),
        ([HEAD, data(0, 5), RelayEnd(ID, 1, 9)], "9 bytes were sent and 5 came"),
        (
            [HEAD, *(data(n * RELAY_CHUNK_BYTES, RELAY_CHUNK_BYTES) for n in range(3))],
            "had been taken",
        ),
    ],
)
def test_a_worker_that_breaks_the_order_is_named(messages: Sequence[RelayHead], why: str) -> None:
    """A gap, bytes before the head, a wrong end, and more than the credit."""
    relay = attempt()
    wrongs = [relay.take(message) for message in messages]
    assert wrongs[:-1] == [None] * (len(messages) - 1)
    assert why in str(wrongs[-1])


class FakeLink:
    """A worker that takes `steps` bytes at a time whenever the sender waits."""

    def __init__(self, steps: Sequence[int], waiting: int = 0) -> None:
        self.steps = list(steps)
        self.body = b""
        self.num_taken = 0
        self.most_ahead = 0
        self.credits: list[int] = []
        self.waiting = waiting
        self.attempt: Attempt | None = None
        self.forgotten = 0

    def submit(self, attempt: Attempt, message: Relay) -> None:
        self.attempt = attempt
        self.body = message.data
        self.num_bytes = message.num_bytes

    def send_on(self, attempt: Attempt, message: RelayChunk | RelayCredit) -> None:  # noqa: ARG002
        if isinstance(message, RelayCredit):
            self.credits.append(message.num_taken)
            return
        assert message.offset == len(self.body)
        self.body += message.data
        self.most_ahead = max(self.most_ahead, len(self.body) - self.num_taken)

    def waiting_bytes(self, attempt: Attempt) -> int:  # noqa: ARG002
        self.waiting = max(0, self.waiting - UPLOAD_ROOM_BYTES // 4)
        return self.waiting

    def forget(self, attempt: Attempt) -> None:  # noqa: ARG002
        self.forgotten += 1

    async def run(self) -> None:
        """Take what is there, then answer."""
        while self.attempt is None:
            await trio.lowlevel.checkpoint()
        assert isinstance(self.attempt, RelayAttempt)
        steps = iter(self.steps)
        while self.num_taken < self.num_bytes:
            self.num_taken = min(self.num_taken + next(steps, 10**9), len(self.body))
            self.attempt.take(RelayTaken(ID, 1, self.num_taken))
            await trio.testing.wait_all_tasks_blocked(0.001)
        self.attempt.take(HEAD)
        self.attempt.take(RelayEnd(ID, 1, 0))


def client(link: FakeLink) -> RelayClient:
    lease = Lease(1, WORKER, 0, "")
    return RelayClient(link, lease, ID, 1, model="m", digests=())


async def exchange(link: FakeLink, body: bytes) -> tuple[int, bytes]:
    async with client(link).exchange(
        "POST", "/v1/x", [], body, connect_s=1, write_s=1, read_s=60
    ) as response:
        return response.status, b"".join([part async for part in response.body])


@given(
    size=st.integers(0, 5 * RELAY_WINDOW_BYTES),
    steps=st.lists(st.integers(1, 2 * RELAY_WINDOW_BYTES), max_size=12),
    waiting=st.integers(0, 2 * UPLOAD_ROOM_BYTES),
)
def test_an_upload_is_never_further_ahead_than_its_window(
    size: int, steps: list[int], waiting: int
) -> None:
    """However the engine takes it, and however full the link is; all of it arrives."""
    link = FakeLink(steps, waiting)
    body = bytes(range(256)) * (size // 256)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            assert await exchange(link, body) == (200, b"")

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert link.body == body
    assert link.most_ahead <= RELAY_WINDOW_BYTES
    assert link.forgotten == 1


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (RelayEnd(ID, 1, 0, "broken", "the engine cut it"), "the engine cut it"),
        (Rejected(ID, 1, "busy", "4 requests run"), "4 requests run"),
        (Lost(), "lost"),
    ],
)
async def test_an_end_before_the_head_is_an_error(end: object, text: str) -> None:
    """An end before the head is an error, with what is known of it."""
    link = FakeLink([])

    async def fail() -> None:
        while link.attempt is None:
            await trio.lowlevel.checkpoint()
        if isinstance(end, RelayEnd):
            assert isinstance(link.attempt, RelayAttempt)
            link.attempt.take(end)
        else:
            link.attempt.end(end)  # type: ignore[arg-type] # an outcome, as listed above

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        with pytest.raises(HttpError, match=text):
            await exchange(link, b"{}")
    assert link.forgotten == 1
