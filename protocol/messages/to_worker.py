"""What a gateway sends to a worker: the closed union `ToWorker`.

Must not know what a worker answers with, sockets, or HTTP.
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
from protocol.sampling import MAX_LOGPROBS, SamplingParams

MAX_GRAMMAR_BYTES: Final = 2**18
"""The bound on a grammar's text. An agent's tools have some 40 KiB of schemas."""
GrammarKind = Literal["json_schema", "lark", "regex"]


class Grammar(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the output must follow: `text` is a JSON schema (options in `x-guidance`), a
    grammar in llguidance's Lark, or a regular expression.

    The grammar applies from the first output token. With a `closing_id` reasoning may come first,
    and the grammar applies after the first token with that id. The prompt has opened the reasoning,
    unless there is an `opening_id`: then only an output that begins with that token has reasoning.
    """

    kind: GrammarKind
    text: Annotated[str, msgspec.Meta(max_length=MAX_GRAMMAR_BYTES)]
    closing_id: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] | None = None
    opening_id: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] | None = None


class Welcome(WireMessage, frozen=True, tag=1):
    """The gateway accepts the worker that sent `Register`, which then dials `gateways` too."""

    protocol_version: int
    gateway_id: Id16
    epoch: Count
    gateways: tuple[str, ...] = ()


class Submit(WireMessage, frozen=True, tag=2):
    """Generate one sequence. `output_ids` are tokens that an earlier attempt produced: they count
    for penalties and limits, and generation continues after them.

    `deadline_s` is relative to arrival. `salt` separates prefix caches.
    """

    request_id: Id16
    attempt: Count
    model: str
    prompt_ids: PackedTokens
    output_ids: PackedTokens
    sampling: SamplingParams
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    deadline_s: Finite | None = None
    salt: bytes = b""
    adapter: str = ""
    grammar: Grammar | None = None


class Abort(WireMessage, frozen=True, tag=3):
    """Stop a sequence and free its blocks. Unknown ids are ignored: the sequence may have ended."""

    request_id: Id16
    attempt: Count


class Drain(WireMessage, frozen=True, tag=4):
    """Take no new sequences; send `Bye` when the running ones are done or after `deadline_s`."""

    deadline_s: Amount


class Ping(WireMessage, frozen=True, tag=5):
    """The supervisor's event loop answers with `Pong`. libzmq's own heartbeats are not enough,
    because libzmq answers them even for a stuck process.

    `last_pong` is the nonce of the newest `Pong` that the gateway has handled, 0 before the first.
    It acknowledges every message that the worker sent before that `Pong`.
    """

    nonce: Count
    last_pong: Count = 0


class Snapshot(WireMessage, frozen=True, tag=6):
    """Send `BlocksSnapshot`: the gateway saw a gap in the sequence of block events."""


class GetFiles(WireMessage, frozen=True, tag=7):
    """Send the model's text files (tokenizer, template, configs) with that digest."""

    digest: Id16


class Dismiss(WireMessage, frozen=True, tag=8):
    """The gateway has disconnected the worker, whose sequences are lost, or refuses its `Register`.
    A worker that is alive logs the reason and registers again.
    """

    reason: str


class Relay(WireMessage, frozen=True, tag=9):
    """POST to `target` of a text-level engine: a body of `num_bytes` that begins with `data`.
    The rest follows as `RelayChunk`s from the first `RelayTaken` on.

    `Abort` stops the exchange. The answer is a `RelayHead`, `RelayData` as far as the gateway's
    credit allows, and a `RelayEnd`; or `Rejected`. `digests` are those of the text's blocks, with
    four bytes counted as a token: blocks that the engine will probably have in its cache.
    """

    request_id: Id16
    attempt: Count
    model: str
    target: Annotated[str, msgspec.Meta(pattern=r"^/[!-~]{0,4095}\Z")]
    headers: Headers
    num_bytes: Count
    data: Piece = b""
    digests: PackedDigests = b""
    deadline_s: Finite | None = None


class RelayChunk(WireMessage, frozen=True, tag=10):
    """More of a relayed request's body, which begins at `offset`."""

    request_id: Id16
    attempt: Count
    offset: Count
    data: Piece


class Embed(WireMessage, frozen=True, tag=12):
    """Compute a prompt and answer with its `Embedding`, of `dimensions` numbers if given, then
    `Finished` without output. Other fields as in `Submit`.
    """

    request_id: Id16
    attempt: Count
    model: str
    prompt_ids: PackedTokens
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=2**20)] | None = None
    deadline_s: Finite | None = None
    salt: bytes = b""


class Distrust(WireMessage, frozen=True, tag=13):
    """Requests of the gateway failed on the engine of this epoch, for the reason `why`, and so did
    health probes. The worker ends the engine and starts another one; it waits until an attached one
    gives tokens. A worker that does not know this message counts it as garbage.
    """

    epoch: Count
    why: Annotated[str, msgspec.Meta(max_length=200)]


class Score(WireMessage, frozen=True, tag=14):
    """Compute a prompt and answer with the log-probabilities of its tokens but the first, with the
    `num_top` likeliest tokens of each: some `Scored`, then `Finished` without output. Nothing of
    the prefix cache is used, because it holds no logits; the prompt's blocks are in it afterwards.
    Other fields as in `Submit`.
    """

    request_id: Id16
    attempt: Count
    model: str
    prompt_ids: PackedTokens
    num_top: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)] = 0
    deadline_s: Finite | None = None
    salt: bytes = b""


class Retain(WireMessage, frozen=True, tag=15):
    """What the gateway expects of the conversation whose request has ended: with probability
    `chance` it sends another one, and half of those that come have come within `within_s`. The
    engine evicts prefixes by it. An earlier expectation of the same `conversation` is over. It may
    come shortly before or after `Finished`; one about an unknown request is ignored.
    """

    request_id: Id16
    attempt: Count
    conversation: Annotated[bytes, msgspec.Meta(max_length=32)]
    chance: Annotated[float, msgspec.Meta(ge=0, le=1)]
    within_s: Amount


class Wanted(WireMessage, frozen=True, tag=16):
    """How much work this gateway has for a worker that takes turns (`TAKES_TURNS`): sequences that
    wait for its model, those that run on it, the sum of the seconds that the first have waited, and
    the age of the oldest of both. Each message replaces the one before.
    """

    waiting: Count = 0
    running: Count = 0
    waited_s: Amount = 0.0
    oldest_s: Amount = 0.0


class RelayCredit(WireMessage, frozen=True, tag=11):
    """The gateway has passed on `num_taken` bytes of the response. The worker may send up to
    `RELAY_WINDOW_BYTES` beyond these.
    """

    request_id: Id16
    attempt: Count
    num_taken: Count


ToWorker = (
    Welcome
    | Submit
    | Abort
    | Drain
    | Ping
    | Snapshot
    | GetFiles
    | Dismiss
    | Relay
    | RelayChunk
    | RelayCredit
    | Embed
    | Score
    | Distrust
    | Retain
    | Wanted
)
