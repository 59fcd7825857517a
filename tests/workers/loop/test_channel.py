"""The engine's end of the socketpair: whole frames in order, however they come."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from workers.ipc.framing import encode_frame
from workers.loop.channel import EngineChannel

LONG = bytes(range(256)) * 4096 * 3
"""3 MiB: more than one read, and more than the socket holds."""
BOUND_S = 10.0


@contextmanager
def channel() -> Iterator[tuple[socket.socket, EngineChannel, threading.Event]]:
    """The supervisor's socket, the engine's end, and whether that has noticed the end."""
    ours, theirs = socket.socketpair()
    ours.settimeout(BOUND_S)
    gone = threading.Event()
    engine = EngineChannel(theirs, on_gone=gone.set)
    try:
        yield ours, engine, gone
    finally:
        ours.close()
        assert gone.wait(BOUND_S)


def test_all_that_is_there_is_taken_at_once() -> None:
    """All frames that are there are taken at once, in order, and nothing is left."""
    frames = [(number % 7, bytes([number])) for number in range(100)]
    with channel() as (supervisor, engine, _):
        supervisor.sendall(b"".join(encode_frame(*frame) for frame in frames))
        assert engine.take(None) == frames
        assert engine.take(0.0) == []


@pytest.mark.parametrize("timeout_s", [None, 0.0, 0.05])
def test_a_frame_may_come_in_pieces(timeout_s: float | None) -> None:
    """A glance gives what is whole, and waiting for ever gives something."""
    with channel() as (supervisor, engine, _):
        data = encode_frame(1, b"first") + encode_frame(2, LONG) + encode_frame(3, b"last")
        writer = threading.Thread(target=supervisor.sendall, args=(data,))
        writer.start()
        taken: list[tuple[int, bytes]] = []
        deadline = time.monotonic() + BOUND_S
        while len(taken) < 3:
            assert time.monotonic() < deadline
            frames = engine.take(timeout_s)
            assert frames or timeout_s is not None
            taken += frames
        writer.join()
        assert taken == [(1, b"first"), (2, LONG), (3, b"last")]


def test_waiting_ends_with_the_time_or_the_frame() -> None:
    """Waiting ends with the time or the frame, after as long as was said; no millisecond more is
    needed for less than one.
    """
    with channel() as (supervisor, engine, _):
        began_at = time.monotonic()
        assert engine.take(0.05) == []
        assert time.monotonic() - began_at >= 0.05
        threading.Timer(0.02, supervisor.sendall, (encode_frame(1, b"x"),)).start()
        assert engine.take(BOUND_S) == [(1, b"x")]


def test_the_end_is_noticed_by_nobody_who_reads() -> None:
    """A supervisor that dies is noticed while the loop is in a step, with frames unread."""
    with channel() as (supervisor, _, gone):
        supervisor.sendall(encode_frame(1, b"unread"))
        assert not gone.wait(0.05)
        supervisor.close()
        assert gone.wait(BOUND_S)


def test_what_cannot_be_frames_is_the_end() -> None:
    """A stream that is out of step cannot be put right."""
    with channel() as (supervisor, engine, gone):
        supervisor.sendall(b"\xff" * 64)
        reader = threading.Thread(target=engine.take, args=(None,), daemon=True)
        reader.start()
        assert gone.wait(BOUND_S)
