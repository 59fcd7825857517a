"""Events for operators: the closed union `FleetEvent`.

Owns the kinds and their fields. Fields hold configured names, counts and fixed phrases: never text
of a prompt or an answer, an address or a secret. Two name what clients name: a conversation by its
id, and tools by their names. Must not know logs, metrics or listeners.
"""

from typing import Final, Literal

import msgspec


class _Event(msgspec.Struct, frozen=True, tag_field="event"):
    """The tag is the kind, in words: `{"event": "worker lost", ...}`."""


class WorkerStarting(_Event, frozen=True, tag="worker starting"):
    """The worker's engine is starting; `epoch` counts the engines of one supervisor."""

    worker: str
    epoch: int


class WorkerReady(_Event, frozen=True, tag="worker ready"):
    """An engine has generated tokens, the first one of a worker of that name."""

    worker: str
    epoch: int
    models: tuple[str, ...]
    device: str


class WorkerBack(_Event, frozen=True, tag="worker back"):
    """A worker that was ready before is ready again."""

    worker: str
    epoch: int
    models: tuple[str, ...]
    device: str


class EngineFault(_Event, frozen=True, tag="engine fault"):
    """An engine died; its supervisor lives. `is_final`: the supervisor does not start it again.
    `cause` is the supervisor's sentence, which names an attached engine's address.
    """

    worker: str
    epoch: int
    kind: str
    exit_code: int | None
    is_final: bool
    cause: str = ""


class WorkerUnproven(_Event, frozen=True, tag="worker unproven"):
    """A worker gets no requests until its engine gives tokens again: several different requests
    failed there without a success between them, or it refused all of them.
    """

    worker: str
    reason: str


class WorkerProven(_Event, frozen=True, tag="worker proven"):
    """The engine of an unproven worker has given tokens; it gets requests again."""

    worker: str


class WorkerAsleep(_Event, frozen=True, tag="worker asleep"):
    """A worker that takes turns has freed its device; a request for one of `models` wakes it."""

    worker: str
    models: tuple[str, ...]


class WorkerWaking(_Event, frozen=True, tag="worker waking"):
    """A worker that takes turns wakes."""

    worker: str
    models: tuple[str, ...]


class WorkerAwake(_Event, frozen=True, tag="worker awake"):
    """A worker that takes turns serves, `after_s` seconds after it began to wake."""

    worker: str
    models: tuple[str, ...]
    after_s: float


class SleepTrouble(_Event, frozen=True, tag="sleep trouble"):
    """A worker did not fall asleep when its turn was over, died asleep, or does not wake."""

    worker: str
    reason: str


class TurnsThrash(_Event, frozen=True, tag="turns thrash"):
    """A worker has woken `wakes` times in ten minutes, and changes took `percent` of the time."""

    worker: str
    wakes: int
    percent: int


class SpeedLost(_Event, frozen=True, tag="speed loss"):
    """A worker is over 10 % slower than at its last good start in these `figures`. `herma diff` on
    its host lists `num_changes` differences.
    """

    worker: str
    figures: tuple[str, ...]
    num_changes: int


class SpeedBack(_Event, frozen=True, tag="speed back"):
    """A worker is as fast again as before its `SpeedLost`."""

    worker: str


class CallsUnknown(_Event, frozen=True, tag="calls unknown"):
    """The template of `model` shows tools with tags of no known format, so its calls are read as
    `taken`; a `tool_parser` of its table says otherwise.
    """

    model: str
    taken: str


class WorkerLost(_Event, frozen=True, tag="worker lost"):
    """A supervisor, its host or the link to it is gone, or it has left."""

    worker: str
    reason: str


class IndexGap(_Event, frozen=True, tag="index gap"):
    """Block events of a worker are missing; a snapshot is asked for."""

    worker: str
    seq: int


class FallbackOn(_Event, frozen=True, tag="fallback on"):
    """From now on providers answer for the model."""

    model: str
    providers: tuple[str, ...]
    reason: str


class FallbackOff(_Event, frozen=True, tag="fallback off"):
    """Workers answer for the model again, after `recovery_probes` successes in a row."""

    model: str
    recovery_probes: int


class HealthProbeFailed(_Event, frozen=True, tag="health probe failed"):
    """A worker that reports itself ready gave no tokens; providers continue to answer."""

    model: str
    worker: str
    reason: str


class Rerouted(_Event, frozen=True, tag="rerouted"):
    """A sequence without a token so far moves to another place."""

    request: str
    model: str
    worker: str
    reason: str


class Resumed(_Event, frozen=True, tag="resumed"):
    """A sequence continues on another worker after `output_tokens` tokens."""

    request: str
    model: str
    worker: str
    reason: str
    output_tokens: int


class RetryRefused(_Event, frozen=True, tag="retry refused"):
    """The retry budget is used up: the client gets the failure instead of a retry."""

    what: str


class PoisonedRequest(_Event, frozen=True, tag="poisoned request"):
    """Several engines died while they ran this request, which is refused from now on."""

    request: str
    model: str
    key: str
    deaths: int


class BreakerOpen(_Event, frozen=True, tag="breaker open"):
    """A worker or provider is asked last for `open_s` seconds, or not at all while `cooling`."""

    scope: Literal["worker", "provider"]
    name: str
    open_s: float
    reason: str
    cooling: bool = False


class BreakerClosed(_Event, frozen=True, tag="breaker closed"):
    """A worker or provider has answered again."""

    scope: Literal["worker", "provider"]
    name: str


class ProviderFailed(_Event, frozen=True, tag="provider failed"):
    """A provider gave no part of an answer; `status` is its HTTP status, if it sent one."""

    provider: str
    model: str
    reason: str
    status: int | None


class AnswerCut(_Event, frozen=True, tag="answer cut"):
    """A provider's answer broke off after it had begun."""

    provider: str
    model: str
    reason: str


class LimitReached(_Event, frozen=True, tag="limit reached"):
    """A spending limit refuses a request for the first time in its window."""

    scope: str
    name: str
    period: str
    resets_at: str


class SpendingThreshold(_Event, frozen=True, tag="spending threshold"):
    """The given percentage of a spending limit is spent."""

    scope: str
    name: str
    period: str
    percent: int


StoreName = Literal["ledger", "stored responses"]


class StoreStuck(_Event, frozen=True, tag="store stuck"):
    """A store on this host cannot be used. Without the ledger, requests that cost are refused."""

    store: StoreName
    reason: str


class StoreWell(_Event, frozen=True, tag="store well"):
    """A store that was stuck is used again."""

    store: StoreName


class LoopFound(_Event, frozen=True, tag="loop"):
    """An agent repeats calls of `tools` that bring nothing new, for the `repeats`th time. `name` is
    its conversation's.
    """

    name: str
    key: str
    model: str
    tools: tuple[str, ...]
    repeats: int
    is_error: bool


class ConversationRefused(_Event, frozen=True, tag="conversation limit"):
    """A limit of a conversation refuses its requests; `what` is tokens, money, turns or minutes."""

    name: str
    key: str
    what: str


class RequestDetached(_Event, frozen=True, tag="detached"):
    """A client left before the first token; its request continues for `grace_s`."""

    model: str
    key: str
    grace_s: float


class TakenOver(_Event, frozen=True, tag="taken over"):
    """A detached request was taken over by the same request, which its client sent again."""

    model: str
    key: str
    after_s: float


class ConfigReloaded(_Event, frozen=True, tag="config reloaded"):
    """A reload: the keys that were taken from the file, and those that need a restart."""

    taken: tuple[str, ...]
    kept: tuple[str, ...]


class ProcessReplaced(_Event, frozen=True, tag="process replaced"):
    """This process replaced one that ended or hung, for the reason `why`. The last field counts the
    processes of this index that have ended since the start of their parent.
    """

    why: str
    times: int


class AdminAct(_Event, frozen=True, tag="admin act"):
    """An act of an operator on this process, and its result; the audit file has more fields."""

    act: str
    who: str
    result: str


FleetEvent = (
    WorkerStarting
    | WorkerReady
    | WorkerBack
    | EngineFault
    | WorkerUnproven
    | WorkerProven
    | WorkerAsleep
    | WorkerWaking
    | WorkerAwake
    | SleepTrouble
    | TurnsThrash
    | CallsUnknown
    | SpeedLost
    | SpeedBack
    | WorkerLost
    | IndexGap
    | FallbackOn
    | FallbackOff
    | HealthProbeFailed
    | Rerouted
    | Resumed
    | RetryRefused
    | PoisonedRequest
    | BreakerOpen
    | BreakerClosed
    | ProviderFailed
    | AnswerCut
    | LimitReached
    | SpendingThreshold
    | StoreStuck
    | StoreWell
    | LoopFound
    | ConversationRefused
    | RequestDetached
    | TakenOver
    | ConfigReloaded
    | ProcessReplaced
    | AdminAct
)

EVENT_KINDS: Final[tuple[str, ...]] = tuple(
    str(kind.__struct_config__.tag) for kind in FleetEvent.__args__
)
"""Every kind, for counters that begin at zero."""


def kind_of(event: FleetEvent) -> str:
    """The kind of `event`, in words."""
    return str(event.__struct_config__.tag)
