"""What a worker sends to a gateway: the closed union `FromWorker`.

Owns, too, the words for what a worker and its engine can do, which a gateway asks before it sends a
message. Must not know how anything is computed, sockets, or HTTP.
"""

from typing import Annotated, Final, Literal

import msgspec

from protocol.messages.fields import (
    Amount,
    Count,
    Finite,
    Headers,
    Id16,
    PackedDigests,
    PackedTokens,
    Piece,
    WireMessage,
)

ENFORCES_GRAMMARS: Final = "grammars"
"""The capability of an engine that takes a `Submit` with a grammar; other engines reject it."""

SCORES_PROMPTS: Final = "prompt_logprobs"
"""The capability of an engine that takes `Score`."""

RETAINS: Final = "retention"
"""The capability of an engine that takes `Retain`; gateways send it to no other."""

INVARIANT: Final = "invariant"
"""The capability of an engine whose tokens do not depend on the other sequences of a batch."""

TAKES_TURNS: Final = "turns"
"""The capability, in `Register`, of a worker that takes turns with others: it takes `Wanted`, and
reports its state with `Residency`.
"""

ASLEEP: Final = "asleep"
"""A word of `Register.capabilities`: the worker is asleep, so that no gateway may submit to it."""

MAX_SCORED: Final = 512
"""Tokens of one `Scored`; with 20 alternatives each they take 150 KB."""


class RelayFacts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Facts of a text-level engine: its name of the model, and the request fields that it refuses,
    which the gateway leaves out.
    """

    model: str
    refused_fields: tuple[str, ...] = ()


class EngineFacts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a running engine measured about itself. `kv_tokens` = blocks x block size.

    An engine with `relay` takes `Relay` instead of `Submit`; its `files_digest` is all zeros.
    `capabilities` name what not every engine can do (`ENFORCES_GRAMMARS`, `INVARIANT`); unknown
    names are ignored. An engine that takes `Embed` gives `embedding_size` numbers. With `snapshots`
    None a sequence can begin behind any cached prefix. Otherwise the model has recurrent layers, or
    layers that keep only their window; the engine keeps at most `snapshots` of their states or
    windows, and a sequence can begin only behind one of these.
    """

    kind: str
    device: str
    dtype: str
    context_length: Count
    block_size: Count
    kv_tokens: Count
    max_seqs: Count
    token_budget: Count
    files_digest: Id16
    capabilities: tuple[str, ...] = ()
    relay: RelayFacts | None = None
    embedding_size: Count = 0
    snapshots: Count | None = None


class Register(WireMessage, frozen=True, tag=32):
    """The worker's description. Sent on connecting and whenever `engine` changes: None while the
    engine starts, its facts once a health probe has generated tokens. `epoch` counts engine starts.
    """

    protocol_version: int
    worker: str
    models: tuple[str, ...]
    build: str
    config_hash: str
    epoch: Count
    engine: EngineFacts | None = None
    capabilities: tuple[str, ...] = ()


class Files(WireMessage, frozen=True, tag=33):
    """The model's text files by name, at most 32 MiB together."""

    digest: Id16
    files: dict[str, bytes]


class Progress(WireMessage, frozen=True, tag=34):
    """The progress of a start. Only lack of progress is a failure, never elapsed time."""

    epoch: Count
    phase: str
    fraction: Finite
    detail: str = ""


class Accepted(WireMessage, frozen=True, tag=35):
    """The sequence runs; `cached_tokens` of its prompt were found in the prefix cache."""

    request_id: Id16
    attempt: Count
    cached_tokens: Count


class SequenceAlive(WireMessage, frozen=True, tag=55):
    """The engine works on the sequence, or keeps it waiting on purpose, and has no token of it: it
    reports progress within the prompt, a place in its queue, or a preemption. Sent at most once a
    second. A gateway that does not know this message counts it as garbage.
    """

    request_id: Id16
    attempt: Count


class TokenLogprobs(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """Log-softmax of the raw logits for one position: the chosen token, then the best ones."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenItem(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """New output tokens of one sequence; `offset` is the index of the first among its outputs.
    `gc=False`, because there are thousands per second and none can be part of a cycle.
    """

    request_id: Id16
    attempt: Count
    offset: Count
    ids: PackedTokens
    logprobs: tuple[TokenLogprobs, ...] = ()


class Tokens(WireMessage, frozen=True, tag=36):
    """The new tokens of one engine step, for all sequences of the receiving gateway."""

    step: Count
    items: tuple[TokenItem, ...]


class Embedding(WireMessage, frozen=True, tag=51):
    """The pooled last hidden state of a prompt: float32, little-endian, of L2 norm 1."""

    request_id: Id16
    attempt: Count
    values: Annotated[bytes, msgspec.Meta(max_length=2**22)]


class Scored(WireMessage, frozen=True, tag=56):
    """Log-probabilities of prompt tokens, of which the first is at position `offset` >= 1. If an
    engine computes a part of a prompt again, that part comes once.
    """

    request_id: Id16
    attempt: Count
    offset: Count
    logprobs: Annotated[tuple[TokenLogprobs, ...], msgspec.Meta(max_length=MAX_SCORED)]


FinishReason = Literal["stop", "length", "abort", "error", "grammar"]
"""`grammar`: no token can continue the output under its grammar. The request is the cause, so
another engine would stop at the same token.
"""


class Finished(WireMessage, frozen=True, tag=37):
    """The sequence is over and its blocks are free. Sent after its last tokens.

    `matched` is the stop token that ended the sequence, if one did. `output_tokens` counts the
    outputs of all attempts, including `matched`, which is never sent. `detail` explains an error.
    In this attempt `drafted_tokens` were verified, of which `accepted_tokens` became output.
    """

    request_id: Id16
    attempt: Count
    reason: FinishReason
    prompt_tokens: Count
    cached_tokens: Count
    output_tokens: Count
    matched: int | None = None
    detail: str = ""
    drafted_tokens: Count = 0
    accepted_tokens: Count = 0


RejectReason = Literal[
    "busy", "too_long", "draining", "unknown_model", "invalid", "not_ready", "grammar"
]


class Rejected(WireMessage, frozen=True, tag=38):
    """The sequence was refused. `busy`, `draining` and `not_ready` are not failures. `grammar`: the
    grammar cannot be enforced here; `detail` says why.
    """

    request_id: Id16
    attempt: Count
    reason: RejectReason
    detail: str = ""


Tier = Literal["card", "host"]
"""Where a cached block lies: on the card, which may have a copy on the host, or on the host alone,
so that a hit has to be loaded.
"""


class BlocksStored(WireMessage, frozen=True, tag=39):
    """These block digests are in the prefix cache, from now on on this `tier`: they are new there,
    or were on the other tier before. `seq` rises by one per block event.
    """

    seq: Count
    digests: PackedDigests
    tier: Tier = "card"


class BlocksDropped(WireMessage, frozen=True, tag=40):
    """These block digests are no longer in the prefix cache, on no tier."""

    seq: Count
    digests: PackedDigests


class StatesSaved(WireMessage, frozen=True, tag=52):
    """For a model with recurrent layers: the states behind these blocks are kept from now on. A
    sequence begins behind the last cached block of its prefix whose state is kept. This is a block
    event: `seq` continues the numbers of `BlocksStored`.
    """

    seq: Count
    digests: PackedDigests


class StatesForgotten(WireMessage, frozen=True, tag=53):
    """The states behind these blocks are no longer kept."""

    seq: Count
    digests: PackedDigests


BlockEvent = BlocksStored | BlocksDropped | StatesSaved | StatesForgotten


class BlocksSnapshot(WireMessage, frozen=True, tag=41):
    """The digests of all blocks in the prefix cache after event `seq`, of those whose states are
    kept, and of those that are on the host alone.
    """

    seq: Count
    digests: PackedDigests
    states: PackedDigests = b""
    on_host: PackedDigests = b""


class DraftResults(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The results of an engine's drafts since its start. `passes`, each of one sequence, made
    `tokens`. `verified` and `accepted` count the drafts at each position behind the last token.
    `depth` is the recent number of drafts per pass, `gain` the recent speed-up by drafts.
    """

    drafter: str
    passes: Count
    tokens: Count
    verified: tuple[Count, ...]
    accepted: tuple[Count, ...]
    depth: Amount
    gain: Amount


class CacheUse(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The prefix cache of an engine with a host tier. The host's memory has `num_bytes`, of which
    `held_bytes` hold something. The others count since the engine's start: bytes stored on the host
    and loaded from it, tokens of prompts found in the cache, those of them that were loaded, blocks
    evicted from the host, blocks and states that were found spoilt and not used, those that the
    engine found at its start, and tokens of all prompts that began. A block takes `block_bytes` on
    the host; the latest loads ran at `load_bytes_per_s`, 0 before the first.
    """

    num_bytes: Count
    held_bytes: Count
    stored_bytes: Count = 0
    loaded_bytes: Count = 0
    hit_tokens: Count = 0
    loaded_tokens: Count = 0
    evicted: Count = 0
    spoilt: Count = 0
    recovered: Count = 0
    prompt_tokens: Count = 0
    block_bytes: Count = 0
    load_bytes_per_s: Amount = 0.0


class Load(WireMessage, frozen=True, tag=42):
    """The engine's own counters, sent after changes, at most once per 100 ms.

    `free_blocks` counts blocks that no sequence holds (cached ones included). `step_ms` and
    `prefill_tokens_per_s` are moving averages, 0 while unknown. `places` is how many sequences the
    engine takes at once now: `max_seqs` of its facts, or fewer if the answers of that many would
    not fit into its memory; 0 while unknown. `drafting` is None for an engine without drafts,
    `cache` for one without a host tier. Of `evicted_blocks`, which no tier has any more, some were
    wanted later: `recomputed_tokens` were computed again. Both count since the engine's start.
    """

    epoch: Count
    running: Count
    waiting: Count
    free_blocks: Count
    num_blocks: Count
    steps: Count
    preemptions: Count
    step_ms: Amount
    prefill_tokens_per_s: Amount
    places: Count = 0
    drafting: DraftResults | None = None
    cache: CacheUse | None = None
    evicted_blocks: Count = 0
    recomputed_tokens: Count = 0


MAX_FIGURES: Final = 8
MAX_FIGURE_CHARS: Final = 200
Figure = Annotated[str, msgspec.Meta(max_length=MAX_FIGURE_CHARS)]


class SpeedLoss(WireMessage, frozen=True, tag=54):
    """The `figures` of the engine of this epoch that are over 10 % slower than at its last good
    start, each as text with both numbers; empty when none is any longer. `herma diff` on the
    worker's host lists `num_changes` differences between the starts. A gateway that does not know
    this message counts it as garbage.
    """

    epoch: Count
    figures: Annotated[tuple[Figure, ...], msgspec.Meta(max_length=MAX_FIGURES)]
    num_changes: Count = 0


ResidencyState = Literal["awake", "falling asleep", "asleep", "waking"]
MAX_WHY_CHARS: Final = 300


class Residency(WireMessage, frozen=True, tag=58):
    """Whether a worker that takes turns is awake, asleep or between both. Only an awake one takes
    work. `due_s` is the forecast of the seconds until it is awake, 0 if unknown or if no request
    wants it. `trouble` says why its last change failed, or why it does not wake. A gateway that
    does not know this message counts it as garbage.
    """

    epoch: Count
    state: ResidencyState
    due_s: Amount = 0.0
    trouble: Annotated[str, msgspec.Meta(max_length=MAX_WHY_CHARS)] = ""


class Pong(WireMessage, frozen=True, tag=43):
    """The supervisor is alive."""

    nonce: Count


FaultKind = Literal[
    "bad_answer",
    "configuration",
    "crash",
    "disk_full",
    "driver",
    "error",
    "file_not_found",
    "gpu_error",
    "gpu_memory",
    "hung",
    "killed",
    "left",
    "memory",
    "no_answers",
    "no_progress",
    "not_executable",
    "port_taken",
    "ranks",
    "unknown",
]
"""Why an engine died. The set is closed because it becomes a metric's label."""


class Fault(WireMessage, frozen=True, tag=44):
    """The engine of this epoch is gone, and every sequence on it is lost. `exit_code` is as in a
    shell. `is_final`: the supervisor does not start it again until an operator removes the cause
    and restarts the worker.
    """

    worker: str
    epoch: Count
    cause: str
    exit_code: int | None
    last_log: tuple[str, ...] = ()
    is_final: bool = False
    kind: FaultKind = "unknown"


REPLACED: Final = "its process is replaced"
LINK_LOST: Final = "the link was lost; what ran for this gateway was aborted"

BACK_SOON: Final = frozenset({REPLACED, LINK_LOST})
"""The reasons of a `Bye` after which the worker comes back within a moment."""


class Bye(WireMessage, frozen=True, tag=45):
    """The worker leaves on purpose."""

    reason: str


class RelayHead(WireMessage, frozen=True, tag=47):
    """The head of the engine's response. Names of headers are in lower case."""

    request_id: Id16
    attempt: Count
    status: Annotated[int, msgspec.Meta(ge=100, le=999)]
    headers: Headers


class RelayData(WireMessage, frozen=True, tag=48):
    """More of the response's body, which begins at `offset`."""

    request_id: Id16
    attempt: Count
    offset: Count
    data: Piece


class RelayTaken(WireMessage, frozen=True, tag=49):
    """The engine has taken `num_taken` bytes of the request's body. The gateway may send up to
    `RELAY_WINDOW_BYTES` beyond these.
    """

    request_id: Id16
    attempt: Count
    num_taken: Count


RelayError = Literal["aborted", "broken", "unreachable"]


class RelayEnd(WireMessage, frozen=True, tag=50):
    """The exchange is over. Without an `error` the response is complete and has `num_bytes`.

    `unreachable`: nothing reached the engine; `broken`: the connection broke, or was silent for too
    long.
    """

    request_id: Id16
    attempt: Count
    num_bytes: Count
    error: RelayError | None = None
    detail: str = ""


class Bundle(WireMessage, frozen=True, tag=46):
    """Frames that the engine sent at the same time, in order; none of them is a bundle.

    A separate frame would cost the gateway a wake-up of three threads, as much as handling twenty
    messages. Each part is a whole frame, so the supervisor joins them without decoding, and garbage
    in one does not affect the others.
    """

    frames: tuple[bytes, ...]


FromWorker = (
    Register
    | Files
    | Progress
    | Accepted
    | SequenceAlive
    | Tokens
    | Finished
    | Rejected
    | BlocksStored
    | BlocksDropped
    | BlocksSnapshot
    | StatesSaved
    | StatesForgotten
    | Load
    | SpeedLoss
    | Residency
    | Pong
    | Fault
    | Bye
    | Bundle
    | RelayHead
    | RelayData
    | RelayTaken
    | RelayEnd
    | Embedding
    | Scored
)
