"""The messages of control sockets, by which commands such as `herma reload` talk to processes.

Owns the requests, the answers and their form: one line of JSON each way. During an upgrade
processes of two versions exchange them, so fields are only added, with a default. Must not know
sockets or how answers are displayed.
"""

from typing import Annotated, Final, Literal

import msgspec

from protocol.messages import FaultKind
from protocol.reading import decoded

MAX_LINE_BYTES: Final = 65_536
MAX_SHOWN_BYTES: Final = 2**22
"""The longest answer with dashboard data: an overview of a hundred requests has 80 KB."""
WORKER_SOCKET: Final = "control"
GATEWAY_SOCKET: Final = "gateway"
UP_SOCKET: Final = "up"
"""The last word in a control socket's name, after its owner (`housekeeping/process_files.py`)."""

State = Literal[
    "starting", "ready", "draining", "waiting", "ending", "stopped", "leaving",
    "falling asleep", "asleep", "waking",
]  # fmt: skip

MAX_SHOWN_LINES: Final = 20
"""More lines, of up to 500 characters, might exceed `MAX_LINE_BYTES` once escaped."""

MAX_SHOWN_TROUBLES: Final = 8

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class AskStatus(msgspec.Struct, frozen=True, tag="status", forbid_unknown_fields=True):
    """Asks for the worker's status."""


class AskRestart(msgspec.Struct, frozen=True, tag="restart", forbid_unknown_fields=True):
    """Restart the engine with the current configuration file; `force`: without draining. A held
    worker starts `version` of its launch's installation; "" is the current version.
    """

    force: bool = False
    version: str = ""


class AskReload(msgspec.Struct, frozen=True, tag="reload", forbid_unknown_fields=True):
    """Apply what has changed in the configuration file."""


class AskClear(msgspec.Struct, frozen=True, tag="clear", forbid_unknown_fields=True):
    """Forget cached prefixes that no request uses, on the card and in the host's memory."""


class AskHold(msgspec.Struct, frozen=True, tag="hold", forbid_unknown_fields=True):
    """Hold the worker: take no more work, finish running sequences within `drain_s`, then use the
    engine only for these messages. `lease_s` after the last of them the worker serves again, with
    the version that it had before.
    """

    drain_s: Seconds
    lease_s: Seconds


class ProbeQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A prompt: token `ids`, or `text` for an engine that takes text."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    ids: tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**32)], ...] = ()
    text: str = ""


class AskProbe(msgspec.Struct, frozen=True, tag="probe", forbid_unknown_fields=True):
    """Send prompts to the engine of a held worker. The report with that `number` appears in the
    worker's status. `has_leads`: report too how far each token led over the next best.
    """

    number: int
    questions: tuple[ProbeQuestion, ...]
    has_leads: bool = True


class AskServe(msgspec.Struct, frozen=True, tag="serve", forbid_unknown_fields=True):
    """End the hold: the worker serves again."""


class AskReplace(msgspec.Struct, frozen=True, tag="replace", forbid_unknown_fields=True):
    """Replace the process of a held worker by the program `entry`, the first words of a command
    line that continues with the present options. The new process is held for `lease_s`, or serves
    at once if that is 0.
    """

    entry: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    lease_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 0.0


class AskSleep(msgspec.Struct, frozen=True, tag="sleep", forbid_unknown_fields=True):
    """Let the engine finish its sequences and fall asleep. A request for its model wakes it."""


class AskWake(msgspec.Struct, frozen=True, tag="wake", forbid_unknown_fields=True):
    """Wake the engine; others of its device fall asleep for it where they must."""


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
    | AskClear
    | AskHold
    | AskProbe
    | AskServe
    | AskReplace
    | AskSleep
    | AskWake
    | AskOverview
    | AskRequest
)

READS: Final[tuple[type[Ask], ...]] = (AskStatus, AskOverview, AskRequest)
"""Requests that change nothing. All others leave a line in the audit file."""


class LastFault(msgspec.Struct, frozen=True):
    """The death of the engine of `epoch`, `ago_s` seconds ago."""

    epoch: int
    kind: FaultKind
    cause: str
    exit_code: int | None
    ago_s: Annotated[float, msgspec.Meta(ge=0)]
    last_log: tuple[str, ...] = ()


class ProbedAnswer(msgspec.Struct, frozen=True):
    """The answer to a probe question. `leads` is by how much, in log probability, each token led
    over the next best; empty if unknown. `text` is the answer of an engine that gives text. Speeds
    are 0 if unknown.
    """

    tokens: tuple[int, ...] = ()
    leads: tuple[float, ...] = ()
    text: str = ""
    first_token_s: float = 0.0
    tokens_per_s: float = 0.0


class ProbeReport(msgspec.Struct, frozen=True):
    """The progress of the probe with that number; `failure` says why it ended early."""

    number: int
    is_over: bool
    failure: str = ""
    answers: tuple[ProbedAnswer, ...] = ()


class WorkerStatus(msgspec.Struct, frozen=True, tag="status"):
    """One worker.

    Its engine: `phase` and `fraction` are the progress of a start, `uptime_s` is how long the
    engine has been ready (0: it is not). `restarts` counts engines that died or were replaced.
    `device` is the engine's, `is_invariant` its mode, `drafting` describes the results of drafts,
    `cache` its host tier.
    `installation` and `base` are those of its launch, `version` is the version that runs.

    Its links: `gateways` counts the gateways that welcomed it and those that it dials. `troubles`
    are what the start found, its `warnings` included, and the reasons of the other gateways.
    `is_held`: no gateway can use it; `probe` is its last probe.

    If it takes turns, `turn` is a line about its sleep: for how long, or until when; what it holds
    of the device; by which way it sleeps, and why by no better one.

    Its process: `entry` is the program, of the version `build`. `rank` is its rank in `group`.
    `config` is the absolute path of its file, "" without one, None from a version that does not
    say it.
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
    cache: str = ""
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
    config: str | None = None
    turn: str = ""


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
    """How many ready workers serve a model, and whether providers may."""

    name: str
    ready_workers: int
    has_providers: bool


class GatewayStatus(msgspec.Struct, frozen=True, tag="gateway"):
    """One gateway process. `process` is its index if several share the port, else "". `replaced`
    processes had its index before; `why` is how the last one ended. `config` is as a worker's.
    `troubles` are what does not work now though it answers, as a ledger that cannot be written.
    `ledger` is the path of its ledger, empty without one; None from a gateway that does not say.
    """

    pid: int
    url: str
    build: str
    process: str = ""
    models: tuple[ModelCover, ...] = ()
    entry: tuple[str, ...] = ()
    replaced: int = 0
    why: str = ""
    config: str | None = None
    troubles: tuple[str, ...] = ()
    ledger: str | None = None


class UpStatus(msgspec.Struct, frozen=True, tag="up"):
    """One `herma up` with a file, `config`."""

    pid: int
    config: str | None = None


class Reloaded(msgspec.Struct, frozen=True, tag="reloaded"):
    """The result of a reload: the keys that were `taken` from the file, and the keys that are
    `kept` as they were until a restart. `ended` are the pids of workers that are gone from the file
    and leave, so that no gateway asks them.
    """

    taken: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    ended: tuple[int, ...] = ()

    @property
    def summary(self) -> str:
        """The result in one line, for the audit file."""
        left = f"; not taken: {', '.join(self.kept)}" if self.kept else ""
        return f"taken: {', '.join(self.taken) or 'nothing'}{left}"


class Shown(msgspec.Struct, frozen=True, tag="shown"):
    """Dashboard data of a gateway process, as `gateway/dashboard` defines it."""

    json: msgspec.Raw


Answer = WorkerStatus | GatewayStatus | UpStatus | Refused | Done | Reloaded | Shown

_encoder = msgspec.json.Encoder()
_asks: msgspec.json.Decoder[Ask] = msgspec.json.Decoder(Ask)
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def encode_line(message: Ask | Answer) -> bytes:
    """The message as one line, with its newline."""
    return _encoder.encode(message) + b"\n"


def decode_ask(line: bytes) -> Ask:
    """Raises `WireError` for anything but a request."""
    return decoded(_asks, line, "a request to a process of Herma")


def decode_answer(line: bytes) -> Answer:
    """Raises `WireError` for anything but an answer."""
    return decoded(_answers, line, "an answer of a process of Herma")
