"""The messages of the control sockets of this host's processes.

Owns the requests, the answers and their form: one line of JSON each way. Processes of two versions
speak it while one replaces the other, so fields are only added, with a default. Must not know
sockets or how a table looks.
"""

from typing import Annotated, Final, Literal

import msgspec

from protocol.errors import WireError
from protocol.messages import FaultKind

MAX_LINE_BYTES: Final = 65_536
WORKER_SOCKET: Final = "control"
GATEWAY_SOCKET: Final = "gateway"
"""Control sockets are named for their owner (`protocol/leftovers.py`) and such a word."""

State = Literal["starting", "ready", "draining", "waiting", "ending", "stopped", "leaving"]

MAX_SHOWN_LINES: Final = 20
"""50 lines of 500 characters would not be sure to fit into one answer once escaped."""

MAX_SHOWN_TROUBLES: Final = 8


class AskStatus(msgspec.Struct, frozen=True, tag="status", forbid_unknown_fields=True):
    """Asks for the worker's status."""


class AskRestart(msgspec.Struct, frozen=True, tag="restart", forbid_unknown_fields=True):
    """Restart the engine with the file's current configuration; `force`: without draining."""

    force: bool = False


class AskReload(msgspec.Struct, frozen=True, tag="reload", forbid_unknown_fields=True):
    """Take what has changed in the file."""


Ask = AskStatus | AskRestart | AskReload


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
    that of the engine, `is_invariant` its mode, `drafting` what its drafts bring; `gateways` counts
    those welcomed and those dialled, `troubles` are the warnings of its start and the reasons of
    the other gateways.
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
    drafting: str = ""
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


class GatewayStatus(msgspec.Struct, frozen=True, tag="gateway"):
    """One gateway process. `process` is which of several on one port, as 0/4; "" if it is alone."""

    pid: int
    url: str
    build: str
    process: str = ""


class Reloaded(msgspec.Struct, frozen=True, tag="reloaded"):
    """The file was read: what was `taken` of it, and what is `kept` as it was until a restart, each
    with the restart that it needs.
    """

    taken: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


Answer = WorkerStatus | GatewayStatus | Refused | Done | Reloaded

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
        raise WireError(f"not a request to a process of Herma: {error}") from error


def decode_answer(line: bytes) -> Answer:
    """Raises `WireError` for anything but an answer."""
    try:
        return _answers.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not an answer of a process of Herma: {error}") from error
