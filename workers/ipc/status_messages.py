"""The messages of a supervisor's local control socket.

Owns the requests, the answers and their form: one line of JSON each way. Must not know sockets or
how a table looks.
"""

from typing import Annotated, Final, Literal

import msgspec

from protocol.errors import WireError
from protocol.messages import FaultKind

MAX_LINE_BYTES: Final = 65_536
SOCKET_KIND: Final = "control"
"""Control sockets are named for their owner (`workers/supervisor/leftovers.py`) and this word."""

State = Literal["starting", "ready", "draining", "waiting", "ending", "stopped", "leaving"]

MAX_SHOWN_LINES: Final = 20
"""50 lines of 500 characters would not be sure to fit into one answer once escaped."""

MAX_SHOWN_TROUBLES: Final = 8


class AskStatus(msgspec.Struct, frozen=True, tag="status", forbid_unknown_fields=True):
    """Asks for the worker's status."""


class AskRestart(msgspec.Struct, frozen=True, tag="restart", forbid_unknown_fields=True):
    """Restart the engine with the file's current configuration; `force`: without draining."""

    force: bool = False


Ask = AskStatus | AskRestart


class LastFault(msgspec.Struct, frozen=True):
    """The death of the engine of `epoch`, `ago_s` seconds ago."""

    epoch: int
    kind: FaultKind
    cause: str
    exit_code: int | None
    ago_s: Annotated[float, msgspec.Meta(ge=0)]
    last_log: tuple[str, ...] = ()


class WorkerStatus(msgspec.Struct, frozen=True, tag="status"):
    """One worker. `phase` and `fraction` tell how far a start is, `uptime_s` how long the engine
    has been ready (0: it is not). `restarts` counts engines that died or were replaced. `device` is
    that of the engine, `is_invariant` its mode; `gateways` counts those welcomed and those dialled,
    `troubles` are the warnings of its start and the reasons of the other gateways.
    """

    name: str
    pid: int
    serves: str
    model: str
    state: State
    epoch: int
    restarts: int
    phase: str = ""
    fraction: float = 0.0
    detail: str = ""
    engine_pid: int | None = None
    uptime_s: float = 0.0
    device: str = ""
    is_invariant: bool = False
    gateways: tuple[int, int] = (0, 0)
    troubles: tuple[str, ...] = ()
    fault: LastFault | None = None


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The reason of a refusal, in one line."""

    reason: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The restart has begun; `epoch` is the start to wait for, `changed` the keys of the file that
    changed.
    """

    epoch: int
    changed: tuple[str, ...] = ()


Answer = WorkerStatus | Refused | Done

_encoder = msgspec.json.Encoder()
_asks: msgspec.json.Decoder[Ask] = msgspec.json.Decoder(Ask)
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def encode_line(message: Ask | Answer) -> bytes:
    """One line, its newline included."""
    return _encoder.encode(message) + b"\n"


def decode_ask(line: bytes) -> Ask:
    """Raises `WireError` for anything but a request."""
    try:
        return _asks.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a request to a worker: {error}") from error


def decode_answer(line: bytes) -> Answer:
    """Raises `WireError` for anything but an answer."""
    try:
        return _answers.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not an answer of a worker: {error}") from error
