"""Requests for a place, and the effects of decisions.

Owns the values that pass between the pure fleet state and the code around it. `FleetState` returns
effects and performs none. Must not know how they are performed.

They are msgspec Structs: a frozen dataclass takes 1 us or more to fill, and 1 ms to define.
"""

from typing import Literal

import msgspec

from config import FallbackConfig
from gateway.api import ApiError
from gateway.telemetry import Decision, FleetEvent
from protocol.ids import BlockDigest, WorkerId


class RouteRequest(msgspec.Struct, frozen=True):
    """One sequence that needs a place.

    `digests` are the digests of the prompt's full blocks (with the model's block size), in order.
    `max_tokens` is already limited to what the context window leaves. `weight` is the key's share.
    With `session` None the conversation is recognised by its prompt. `auxiliary`: not streamed,
    without tools, a prompt of at most 4k tokens. `cloud`: the key allows providers. `deadline_at`
    is on the clock of `now`. `excluded` workers are used only if no other one is ready, and if they
    have failed on this request (`has_failed`) only if no provider may answer either. `resumed`:
    tokens came already, so no provider can continue the answer; but one may begin it again if
    nothing of it was sent (`may_restart`). `prefer` breaks ties.
    `fingerprint` is equal for equal bytes of the client's body; see `quarantine.py`.
    `num_sequences`: a placed request leads to this many sequences, one for each choice.
    """

    ticket: int
    model: str
    key: str
    weight: float
    session: str | None
    digests: tuple[BlockDigest, ...]
    prompt_tokens: int
    max_tokens: int
    auxiliary: bool = False
    cloud: bool = True
    deadline_at: float | None = None
    excluded: frozenset[WorkerId] = frozenset()
    resumed: bool = False
    may_restart: bool = False
    prefer: WorkerId | None = None
    fingerprint: bytes = b""
    num_sequences: int = 1
    has_failed: bool = False


class Assign(msgspec.Struct, frozen=True):
    """The ticket has a place on this worker until it is released or moved. The index expects
    `cached_tokens` of the prompt there. `reason` explains the choice in one printable ASCII line,
    `decision` in full. `files_digest` identifies the tokenizer that the worker's token ids belong
    to. The place was asked for at `asked_at` and found at `placed_at`.
    """

    ticket: int
    worker_id: WorkerId
    cached_tokens: int
    reason: str
    files_digest: bytes | None
    decision: Decision | None = None
    asked_at: float = 0.0
    placed_at: float = 0.0


class UseProvider(msgspec.Struct, frozen=True):
    """The ticket goes to the first provider of `chain` that answers; it holds no place here."""

    ticket: int
    chain: tuple[FallbackConfig, ...]
    reason: str


class Refuse(msgspec.Struct, frozen=True):
    """The ticket is over; its client gets `error`."""

    ticket: int
    error: ApiError


class Accept(msgspec.Struct, frozen=True):
    """Answer the worker's `Register` with `Welcome`."""

    worker_id: WorkerId


class RefuseWorker(msgspec.Struct, frozen=True):
    """The worker is not part of the fleet; `reason` is for its operator."""

    worker_id: WorkerId
    reason: str


class AskSnapshot(msgspec.Struct, frozen=True):
    """Send the worker `Snapshot`."""

    worker_id: WorkerId


class AskFiles(msgspec.Struct, frozen=True):
    """Send the worker `GetFiles(digest)`, unless the files are here or asked for already."""

    worker_id: WorkerId
    digest: bytes


class Moved(msgspec.Struct, frozen=True):
    """These tickets have lost their places, which are freed already: each turn asks again. `why` is
    for operators. `died` is the epoch of the engine if it is known to have died, else None.
    """

    tickets: tuple[int, ...]
    worker_id: WorkerId
    why: str
    died: int | None = None


ProbeResult = Literal["passed", "busy", "late", "failed"]
"""`busy`: the worker had no room for the probe. `late`: no token came in time."""


class Probe(msgspec.Struct, frozen=True):
    """Run a health probe for the model on the worker, and report its result with its `serial`.
    `is_of_trust`: it decides about the worker (`trust.py`), else about the model's fallback.
    """

    model: str
    worker_id: WorkerId
    serial: int
    is_of_trust: bool = False


class EndEngine(msgspec.Struct, frozen=True):
    """Tell the worker that its engine of this epoch is at fault, so that it starts another one."""

    worker_id: WorkerId
    epoch: int
    why: str


class Demand(msgspec.Struct, frozen=True):
    """Tell a worker that takes turns how much work there is for it (`Wanted`)."""

    worker_id: WorkerId
    waiting: int
    running: int
    waited_s: float
    oldest_s: float


class Notice(msgspec.Struct, frozen=True):
    """Publish an event for operators."""

    event: FleetEvent


Effect = (
    Assign
    | UseProvider
    | Refuse
    | Accept
    | RefuseWorker
    | AskSnapshot
    | AskFiles
    | Moved
    | Probe
    | EndEngine
    | Demand
    | Notice
)
Effects = tuple[Effect, ...]
