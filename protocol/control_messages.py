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
MAX_SHOWN_BYTES: Final = 2**22
"""An overview of a hundred requests has 80 KB."""
WORKER_SOCKET: Final = "control"
GATEWAY_SOCKET: Final = "gateway"
"""Control sockets are named for their owner (`protocol/leftovers.py`) and such a word."""

State = Literal["starting", "ready", "draining", "waiting", "ending", "stopped", "leaving"]

MAX_SHOWN_LINES: Final = 20
"""50 lines of 500 characters would not be sure to fit into one answer once escaped."""

MAX_SHOWN_TROUBLES: Final = 8

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class AskStatus(msgspec.Struct, frozen=True, tag="status", forbid_unknown_fields=True):
    """Asks for the worker's status."""


class AskRestart(msgspec.Struct, frozen=True, tag="restart", forbid_unknown_fields=True):
    """Restart the engine with the file's current configuration; `force`: without draining. A worker
    that is held starts the `version` of its launch's installation, "" is the current one.
    """

    force: bool = False
    version: str = ""


class AskReload(msgspec.Struct, frozen=True, tag="reload", forbid_unknown_fields=True):
    """Take what has changed in the file."""


class AskHold(msgspec.Struct, frozen=True, tag="hold", forbid_unknown_fields=True):
    """Take no more work, finish what runs in `drain_s`, then keep the engine for these messages.
    After `lease_s` without another of them the worker serves again, with the version that it had.
    """

    drain_s: Seconds
    lease_s: Seconds


class ProbeQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A prompt: its ids, or its `text` for an engine that takes text."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    ids: tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**32)], ...] = ()
    text: str = ""


class AskProbe(msgspec.Struct, frozen=True, tag="probe", forbid_unknown_fields=True):
    """Ask the engine of a worker that is held. The report with that `number` is in the status.
    `has_leads`: how far each token led over the next best is asked too.
    """

    number: int
    questions: tuple[ProbeQuestion, ...]
    has_leads: bool = True


class AskServe(msgspec.Struct, frozen=True, tag="serve", forbid_unknown_fields=True):
    """Hold the worker no longer."""


class AskReplace(msgspec.Struct, frozen=True, tag="replace", forbid_unknown_fields=True):
    """Have the process of a worker that is held become the one of `entry`, the first words of a
    command line, which goes on by the same options, and is held for `lease_s`; 0: it serves.
    """

    entry: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    lease_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0.0


class AskOverview(msgspec.Struct, frozen=True, tag="overview", forbid_unknown_fields=True):
    """Asks a gateway process that serves `url` for the overview of its dashboard."""

    url: str


class AskRequest(msgspec.Struct, frozen=True, tag="request", forbid_unknown_fields=True):
    """Asks a gateway process that serves `url` to explain a request, by its id or short name."""

    url: str
    name: str


Ask = (
    AskStatus
    | AskRestart
    | AskReload
    | AskHold
    | AskProbe
    | AskServe
    | AskReplace
    | AskOverview
    | AskRequest
)

READS: Final[tuple[type[Ask], ...]] = (AskStatus, AskOverview, AskRequest)
"""What changes nothing; all else leaves a line in the audit file."""


class LastFault(msgspec.Struct, frozen=True):
    """The death of the engine of `epoch`, `ago_s` seconds ago."""

    epoch: int
    kind: FaultKind
    cause: str
    exit_code: int | None
    ago_s: Annotated[float, msgspec.Meta(ge=0)]
    last_log: tuple[str, ...] = ()


class ProbedAnswer(msgspec.Struct, frozen=True):
    """`leads`: by how much, in log probability, each token led over the next best; empty if that is
    not known. `text` is that of an engine that gives text. Speeds are 0 where they are not known.
    """

    tokens: tuple[int, ...] = ()
    leads: tuple[float, ...] = ()
    text: str = ""
    first_token_s: float = 0.0
    tokens_per_s: float = 0.0


class ProbeReport(msgspec.Struct, frozen=True):
    """How far the probe of that number is; `failure` says why it ended early."""

    number: int
    is_over: bool
    failure: str = ""
    answers: tuple[ProbedAnswer, ...] = ()


class WorkerStatus(msgspec.Struct, frozen=True, tag="status"):
    """One worker. `phase` and `fraction` tell how far a start is, `uptime_s` how long the engine
    has been ready (0: it is not). `restarts` counts engines that died or were replaced. `device` is
    that of the engine, `is_invariant` its mode, `drafting` what its drafts bring; `gateways` counts
    those welcomed and those dialled, `troubles` are the warnings of its start and the reasons of
    the other gateways. `is_held`: it is kept from gateways, `probe` is its last. `installation` and
    `base` are those of its launch, `version` is the one that runs; `entry` the program of its own
    process, of the version `build`. `rank` is that of a `group`.
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
    is_held: bool = False
    warnings: tuple[str, ...] = ()
    probe: ProbeReport | None = None
    installation: str = ""
    base: str = ""
    version: str = ""
    entry: tuple[str, ...] = ()
    build: str = ""
    group: str = ""
    rank: int = 0


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The reason of a refusal, in one line."""

    reason: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The restart has begun; `epoch` is the start to wait for, `changed` the keys of the file that
    changed.
    """

    epoch: int
    changed: tuple[str, ...] = ()


class ModelCover(msgspec.Struct, frozen=True):
    """Who answers for a model: its ready workers, and whether providers may."""

    name: str
    ready_workers: int
    has_providers: bool


class GatewayStatus(msgspec.Struct, frozen=True, tag="gateway"):
    """One gateway process. `process` is which of several on one port, as 0/4; "" if it is alone.
    `replaced` processes had its place before; the last one ended for `why`.
    """

    pid: int
    url: str
    build: str
    process: str = ""
    models: tuple[ModelCover, ...] = ()
    entry: tuple[str, ...] = ()
    replaced: int = 0
    why: str = ""


class Reloaded(msgspec.Struct, frozen=True, tag="reloaded"):
    """The file was read: what was `taken` of it, and what is `kept` as it was until a restart, each
    with the restart that it needs.
    """

    taken: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """For the audit file."""
        left = f"; not taken: {', '.join(self.kept)}" if self.kept else ""
        return f"taken: {', '.join(self.taken) or 'nothing'}{left}"


class Shown(msgspec.Struct, frozen=True, tag="shown"):
    """What the dashboard of a gateway process shows, as that package defines it."""

    json: msgspec.Raw


Answer = WorkerStatus | GatewayStatus | Refused | Done | Reloaded | Shown

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
