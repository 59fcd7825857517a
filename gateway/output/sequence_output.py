"""The tokens of one choice so far, from all workers that worked on it.

Owns their bound, and whether a client may have seen something of them. Must not know workers or how
ids become events.
"""

from collections.abc import Callable, Sequence
from typing import Literal, final

from gateway.api import Finished, TurnEvent
from gateway.output.output_pipeline import OutputPipeline
from protocol.errors import WireError
from protocol.messages import TokenItem, TokenLogprobs
from protocol.tokens import TOKEN_BYTES, unpack_tokens

Reason = Literal["stop", "length"]


Emit = Callable[[TurnEvent], object]


@final
class EventSink:
    """Where events go now: `emit` may change while an answer is written, when its client comes or
    leaves. It may be called like a function; a token's way reads `emit` instead, which saves a call
    and three objects that are in no cache.
    """

    __slots__ = ("emit",)

    def __init__(self, emit: Emit) -> None:
        self.emit = emit

    def __call__(self, event: TurnEvent) -> None:
        self.emit(event)


class SequenceOutput:
    """Takes token ids; events go to `emit`. One of `end_ids` ends the sequence, or `max_tokens`.

    `packed` holds the tokens as on the wire: for a thousand long answers, lists of numbers would
    take most of the memory. `has_text`: the client may have seen some of the answer. `num_unsent`:
    tokens that the client pays for but workers do not send, such as the one that ends the sequence.
    """

    __slots__ = (
        "_end_ids",
        "_max_bytes",
        "_pipeline",
        "_sink",
        "has_text",
        "num_unsent",
        "packed",
    )

    def __init__(
        self,
        pipeline: OutputPipeline,
        emit: Emit,
        *,
        max_tokens: int,
        end_ids: frozenset[int],
    ) -> None:
        self._pipeline = pipeline
        self._sink = emit if isinstance(emit, EventSink) else EventSink(emit)
        self._max_bytes = max_tokens * TOKEN_BYTES
        self._end_ids = end_ids
        self.packed = bytearray()
        self.has_text = False
        self.num_unsent = 0

    @property
    def num_tokens(self) -> int:
        return len(self.packed) // TOKEN_BYTES

    @property
    def num_left(self) -> int:
        return self._max_bytes // TOKEN_BYTES - self.num_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens that the client pays for."""
        return self.num_tokens - self._pipeline.num_unread + self.num_unsent

    @property
    def reasoning_tokens(self) -> int:
        return self._pipeline.reasoning_tokens

    def take_item(self, item: TokenItem) -> bool:
        """`take` for tokens from a worker. A single plain token takes the short way."""
        packed = item.ids
        pipeline = self._pipeline
        texts = pipeline.plain
        if texts is not None and len(self.packed) < self._max_bytes and (text := texts[packed]):
            self.packed += packed
            self.has_text = True
            if pipeline.plain_is_reasoning:
                pipeline.reasoning_tokens += 1
            self._sink.emit(pipeline.plain_event(text))
            return False
        return self.take(packed, item.logprobs)

    def take(self, packed: bytes, logprobs: Sequence[TokenLogprobs] = ()) -> bool:
        """The next tokens; True once a stop string has ended the choice. Raises `WireError` for
        more tokens than were ordered, and unless there are none or one log-probability per token.
        """
        ids = unpack_tokens(packed)
        if logprobs and len(logprobs) != len(ids):
            raise WireError(f"{len(logprobs)} log-probabilities came for {len(ids)} tokens")
        if len(self.packed) + len(packed) > self._max_bytes:
            num_ordered = self._max_bytes // TOKEN_BYTES
            raise WireError(f"over {num_ordered} tokens came, against the order")
        self.packed += packed
        for event in self._pipeline.push(ids, logprobs):
            self.has_text = True
            self._sink.emit(event)
        return self._pipeline.stopped

    def finish(self, reason: Reason) -> None:
        for event in self._pipeline.finish(reason):
            if type(event) is not Finished:
                self.has_text = True
            self._sink.emit(event)

    def complete_already(self) -> Reason | None:
        """Why the choice is complete with the tokens so far; None if it is not."""
        last = unpack_tokens(bytes(self.packed[-TOKEN_BYTES:]))
        if not self._end_ids.isdisjoint(last):
            return "stop"
        return None if self.num_left else "length"
