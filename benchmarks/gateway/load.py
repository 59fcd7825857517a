"""`python -m benchmarks.gateway.load`: the load generator, a process of its own.

Owns the sockets, the clock and the order of requests. It is cheap (one thread, epoll, no HTTP
library) because it shares the cores with what it measures. Must not know processes.

It reads a job from stdin, prints `ready` when all connections stand, starts at the next byte, and
prints the outcome as the last line.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from benchmarks.gateway.answers import (
    AnswerCheck,
    BytesCheck,
    Dechunker,
    StreamCheck,
    WholeCheck,
    WrongAnswer,
)
from benchmarks.gateway.job import Ask, LoadJob, LoadOutcome, spread

_READ_BYTES: Final = 1 << 18
_MAX_TOLD: Final = 5
_DEAF_BYTES: Final = 4096


class LoadConnection:
    """One keep-alive connection and its current answer."""

    def __init__(self, job: LoadJob, *, is_deaf: bool = False) -> None:
        self.sock = socket.socket()
        self.sock.settimeout(job.patience_s)
        if is_deaf:  # A small window, so that the server notices the missing reads soon.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _DEAF_BYTES)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.connect(("127.0.0.1", job.port))
        self.asked_at = 0.0
        self.left_bytes: int | None = None
        self.read_at: float | None = None
        self._job = job
        self._head: bytes | None = b""
        self._body: Dechunker | None = None
        self._left = 0
        self._check: AnswerCheck | None = None

    def ask(self, ask: Ask, now: float) -> None:
        """Send a request."""
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"content-type: application/json\r\ncontent-length: {len(ask.body)}\r\n\r\n"
        )
        self.asked_at, self.read_at = now, None
        self.left_bytes = ask.leave_after_bytes
        self._head, self._check = b"", _check(self._job, ask)
        self.sock.sendall(head.encode() + ask.body)

    def take(self, data: bytes) -> tuple[int, bool]:
        """The number of tokens that `data` completes, and whether the answer is complete.

        Raises `WrongAnswer`.
        """
        assert self._check is not None
        if self._head is not None:
            self._head += data
            head, blank, data = self._head.partition(b"\r\n\r\n")
            if not blank:
                return 0, False
            self._begin(head, data)
        if self._body is not None:
            num_tokens = self._check.feed(self._body.feed(data))
            is_over = self._body.is_over
        else:
            num_tokens = self._check.feed(data)
            self._left -= len(data)
            is_over = self._left <= 0
        if is_over:
            self._check.end()
        return num_tokens, is_over

    def has_read_enough(self, num_bytes: int) -> bool:
        """Whether this client wants no more bytes."""
        if self.left_bytes is None:
            return False
        self.left_bytes -= num_bytes
        return self.left_bytes <= 0

    def _begin(self, head: bytes, body: bytes) -> None:
        status, *lines = head.lower().split(b"\r\n")
        if b" 200" not in status:
            raise WrongAnswer(f"{status.decode()}: {body.decode(errors='replace')}")
        fields = dict(line.split(b": ", 1) for line in lines)
        self._head = None
        self._body = Dechunker() if b"transfer-encoding" in fields else None
        self._left = int(fields.get(b"content-length", b"0"))


class GatewayLoad:
    """A job while it runs."""

    def __init__(self, job: LoadJob) -> None:
        self._job = job
        self._asks: Iterator[Ask] = iter(job.asks)
        self._poll = select.epoll()
        self._live: dict[int, LoadConnection] = {}
        self._deaf = [LoadConnection(job, is_deaf=True) for _ in range(job.num_deaf)]
        self._num_left = 0
        self._latencies: list[float] = []
        self._gaps: list[float] = []
        self._num_tokens = 0
        self._errors: list[str] = []
        self._waiting: deque[LoadConnection] = deque()
        for _ in range(job.connections):
            self._connect()

    def run(self) -> LoadOutcome:
        """Send all requests and read all answers."""
        began_at, used_s = time.monotonic(), time.process_time()
        self._ask_deaf(began_at)
        self._waiting = deque(self._live.values())
        while self._live:
            events = self._poll.poll(self._ask_waiting(began_at))
            if not events and not self._waiting:
                self._fail_all("nothing came any more")
            now = time.monotonic()
            for number, _ in events:
                if (answering := self._live.get(number)) is not None:
                    self._read(answering, now)
        return LoadOutcome(
            seconds=time.monotonic() - began_at,
            answers=len(self._latencies),
            tokens=self._num_tokens,
            latencies=spread(self._latencies),
            gaps=spread(self._gaps),
            errors=self._errors[:_MAX_TOLD],
            num_errors=len(self._errors),
            num_left=self._num_left,
            deaf_cut=sum(_is_cut(connection.sock) for connection in self._deaf),
            cpu_s=time.process_time() - used_s,
        )

    def _ask_waiting(self, began_at: float) -> float:
        """Send the first requests that are due. Returns the seconds to wait for an event."""
        gap_s = self._job.ramp_s / self._job.connections
        num_due = self._job.connections
        if gap_s > 0:
            num_due = min(num_due, int((time.monotonic() - began_at) / gap_s) + 1)
        while len(self._waiting) > self._job.connections - num_due:
            self._next(self._waiting.popleft())
        return gap_s if self._waiting else self._job.patience_s

    def _ask_deaf(self, now: float) -> None:
        for connection in self._deaf:
            connection.ask(self._job.asks[0], now)

    def _connect(self) -> LoadConnection:
        connection = LoadConnection(self._job)
        self._live[connection.sock.fileno()] = connection
        self._poll.register(connection.sock, select.EPOLLIN)
        return connection

    def _next(self, connection: LoadConnection) -> None:
        """Send the next request, or close if there is none. A client that disconnected has to
        connect again.
        """
        while (ask := next(self._asks, None)) is not None:
            connection.ask(ask, time.monotonic())
            if ask.leave_after_bytes != 0:
                return
            self._num_left += 1
            self._leave(connection)
            connection = self._connect()
        self._leave(connection)

    def _leave(self, connection: LoadConnection) -> None:
        number = connection.sock.fileno()
        self._poll.unregister(number)
        del self._live[number]
        connection.sock.close()

    def _read(self, connection: LoadConnection, now: float) -> None:
        try:
            data = connection.sock.recv(_READ_BYTES)
            if not data:
                raise WrongAnswer("the connection was closed in an answer")  # noqa: TRY301
            num_tokens, is_over = connection.take(data)
            is_left = not is_over and connection.has_read_enough(len(data))
        except (OSError, WrongAnswer) as error:
            self._errors.append(f"{type(error).__name__}: {error}")
            self._leave(connection)
            return
        if num_tokens:
            self._num_tokens += num_tokens
            if connection.read_at is not None:
                self._gaps.append(now - connection.read_at)
            connection.read_at = now
        if is_left:
            self._num_left += 1
            self._leave(connection)
            self._next(self._connect())
        if is_over:
            self._latencies.append(time.monotonic() - connection.asked_at)
            self._next(connection)

    def _fail_all(self, why: str) -> None:
        for connection in list(self._live.values()):
            self._errors.append(why)
            self._leave(connection)


def _check(job: LoadJob, ask: Ask) -> AnswerCheck:
    expected = job.expected[ask.expected]
    match job.check:
        case "stream":
            return StreamCheck(expected, job.num_tokens)
        case "whole":
            return WholeCheck(expected, job.num_tokens)
        case "bytes":
            return BytesCheck(expected)


def _is_cut(sock: socket.socket) -> bool:
    """Whether the server has closed the connection; reads what it had sent before."""
    sock.settimeout(1.0)
    try:
        while sock.recv(_READ_BYTES):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def main() -> None:
    """One job."""
    size = int.from_bytes(sys.stdin.buffer.read(8), "little")
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(size), type=LoadJob)
    load = GatewayLoad(job)
    print("ready", flush=True)
    sys.stdin.buffer.read(1)
    outcome = load.run()
    print(msgspec.json.encode(outcome).decode(), flush=True)


if __name__ == "__main__":
    main()
