"""What is done to a worker, and what may follow from it.

Owns the faults by name: how each is injected, how fast it must be noticed, from when on the worker
can be back. Must not know clients nor how times are measured.
"""

import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

import trio
import zmq

from protocol.ids import WorkerId
from protocol.messages import PROTOCOL_VERSION, Register, TokenItem, Tokens
from protocol.tokens import pack_tokens
from protocol.wire import encode
from tests.chaos.engine import DONE, SLOW_S
from tests.chaos.fleet import Fleet

Detection = Literal["engine", "host", "hang", "none"]

BARS_S: Final[dict[Detection, float]] = {
    "engine": 0.15,
    "host": 1.0,
    "hang": 3.15,
    "none": 0.0,
}
"""How long a fault may stay unnoticed, median; three times as long at most. A hang is three
seconds without a step, then a death like any other."""

PAUSE_S: Final = (2.0, 3.0, 4.0, 2.5, 3.5)

Inject = Callable[[Fleet, str, int], Awaitable[float | None]]
"""Hurts the worker of that name for the given time in the run. Returns when it could serve again
(seconds since 1970), or None if that is when its next engine has loaded.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """`detection` "none": nothing may be lost, killed or moved."""

    name: str
    detection: Detection
    inject: Inject
    evidence: str
    """Stands in the log once per injection at the least, or the fault has not happened."""


async def _kill_engine(fleet: Fleet, name: str, turn: int) -> None:
    fleet.signal_engine(name, signal.SIGKILL)


async def _kill_supervisor(fleet: Fleet, name: str, turn: int) -> None:
    fleet.signal_supervisor(name, signal.SIGKILL)


async def _stop_engine(fleet: Fleet, name: str, turn: int) -> None:
    fleet.signal_engine(name, signal.SIGSTOP)


async def _stop_supervisor(fleet: Fleet, name: str, turn: int) -> float:
    pid = fleet.supervisor_pid(name)
    os.kill(pid, signal.SIGSTOP)
    await trio.sleep(PAUSE_S[turn % len(PAUSE_S)])
    os.kill(pid, signal.SIGCONT)
    return time.time()


async def _cut_link(fleet: Fleet, name: str, turn: int) -> float:
    fleet.proxies[name].cut()
    await trio.sleep(PAUSE_S[turn % len(PAUSE_S)])
    fleet.proxies[name].heal()
    return time.time()


async def _swallow_link(fleet: Fleet, name: str, turn: int) -> float:
    fleet.proxies[name].swallow()
    await trio.sleep(PAUSE_S[turn % len(PAUSE_S)])
    fleet.proxies[name].heal()
    return time.time()


async def _exit_127(fleet: Fleet, name: str, turn: int) -> None:
    fleet.end_next_start(name, 127)
    fleet.signal_engine(name, signal.SIGKILL)


async def _slow_engine(fleet: Fleet, name: str, turn: int) -> float:
    fleet.order(name, slow=fleet.orders(name).slow + 1)
    await trio.sleep(SLOW_S)
    return time.time()


async def _out_of_memory(fleet: Fleet, name: str, turn: int) -> float:
    fleet.order(name, out_of_memory=fleet.orders(name).out_of_memory + 1)
    return time.time()


async def _garbage_frame(fleet: Fleet, name: str, turn: int) -> float:
    fleet.order(name, garbage_frame=fleet.orders(name).garbage_frame + 1)
    return time.time()


async def _garbage_stream(fleet: Fleet, name: str, turn: int) -> None:
    fleet.order(name, garbage_stream=fleet.orders(name).garbage_stream + 1)


async def _strangers(fleet: Fleet, name: str, turn: int) -> float:
    port = fleet.proxies[name].target_port
    await trio.to_thread.run_sync(_shout, port, turn)
    await trio.to_thread.run_sync(_speak_zmq, port, name, turn)
    return time.time()


def _shout(port: int, turn: int) -> None:
    """Bytes that are no ZeroMQ at all, and a greeting that stops half way."""
    for data in (os.urandom(4096), b"\xff" + bytes(8) + b"\x7f\x03", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(data)


def _speak_zmq(port: int, name: str, turn: int) -> None:
    """ZeroMQ peers: no message of ours, messages of nobody who registered, a second holder of a
    living worker's name, an old protocol. Each turn has its own old worker, because a refusal is
    logged once for a name and a reason.
    """
    item = TokenItem(os.urandom(16), 1, 0, pack_tokens(range(8)))
    twin = Register(PROTOCOL_VERSION, name, ("m",), "test", "", 1, None)
    old = Register(PROTOCOL_VERSION - 1, f"old{turn}", ("m",), "test", "", 1, None)
    frames = [b"", b"\xff", os.urandom(4096), b"\x92\x20", encode(Tokens(1, (item,)))]
    frames += [encode(twin), encode(twin)[:-3], encode(old)]
    for number, frame in enumerate(frames):
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.ROUTING_ID, WorkerId(bytes([turn + 1, number]) * 8))
            dealer.setsockopt(zmq.LINGER, 500)
            dealer.connect(f"tcp://127.0.0.1:{port}")
            dealer.send(frame)


FAULTS: Final = {
    fault.name: fault
    for fault in (
        Fault("kill-engine", "engine", _kill_engine, "exit code 137 (SIGKILL)"),
        Fault("kill-supervisor", "host", _kill_supervisor, "ended: SIGKILL; again"),
        Fault("stop-engine", "hang", _stop_engine, "hung: no step finished"),
        Fault("stop-supervisor", "host", _stop_supervisor, "worker lost"),
        Fault("cut-link", "host", _cut_link, "worker lost"),
        Fault("black-hole", "host", _swallow_link, "worker lost"),
        Fault("exit-127", "engine", _exit_127, "exit code 127: file not found"),
        Fault("slow-engine", "none", _slow_engine, f"{DONE}slow"),
        Fault("out-of-memory", "none", _out_of_memory, f"{DONE}out_of_memory"),
        Fault("garbage-frame", "none", _garbage_frame, f"{DONE}garbage_frame"),
        Fault("garbage-stream", "engine", _garbage_stream, f"{DONE}garbage_stream"),
        Fault("strangers", "none", _strangers, "refused"),
    )
}
