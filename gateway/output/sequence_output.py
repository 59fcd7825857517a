"""What one choice has given so far, over all workers that worked on it.

Owns its token ids, their bound, and whether a client may have seen something of them. Must not know
workers or how ids become events.
"""

from collections.abc import Sequence
from typing import Literal

from gateway.api import Finished
from gateway.output.event_sink import EventSink, Tell
from gateway.output.output_pipeline import OutputPipeline
from protocol.errors import WireError
from protocol.messages import TokenItem, TokenLogprobs
from protocol.tokens import TOKEN_BYTES, unpack_tokens

Reason = Literal["stop", "length"]


class SequenceOutput:
    """Takes ids in; events go to `emit`. `end_ids` end a sequence, at the latest `max_tokens` do.

    `packed` are the tokens that came, as on the wire: of a thousand long answers a list of numbers
    is most of the memory. `has_text`: the client may have seen something of it.
    `num_unsent`: tokens that the client pays for though workers do not send them, as the one that
    ended the sequence.
    """

    __slots__ = (
        "_audience",
        "_end_ids",
        "_max_bytes",
        "_pipeline",
        "has_text",
        "num_unsent",
        "packed",
    )

    def __init__(
        self,
        pipeline: OutputPipeline,
        emit: Tell,
        *,
        max_tokens: int,
        end_ids: frozenset[int],
    ) -> None:
        self._pipeline = pipeline
        self._audience = EventSink.of(emit)
        self._max_bytes = max_tokens * TOKEN_BYTES
        self._end_ids = end_ids
        self.packed = bytearray()
        self.has_text = False
        self.num_unsent = 0

    @property
    def num_tokens(self) -> int:
        """How many came."""
        return len(self.packed) // TOKEN_BYTES

    @property
    def num_left(self) -> int:
        """How many more may come."""
        return self._max_bytes // TOKEN_BYTES - self.num_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens that the client pays for."""
        return self.num_tokens - self._pipeline.num_unread + self.num_unsent

    @property
    def reasoning_tokens(self) -> int:
        """Those of them that were thoughts."""
        return self._pipeline.reasoning_tokens

    def take_item(self, item: TokenItem) -> bool:
        """`take` for tokens as they come. A lone one that is plain text goes the short way."""
        packed = item.ids
        pipeline = self._pipeline
        texts = pipeline.plain
        if texts is not None and len(self.packed) < self._max_bytes and (text := texts[packed]):
            self.packed += packed
            self.has_text = True
            if pipeline.plain_is_thought:
                pipeline.reasoning_tokens += 1
            # To call what is in a slot takes half as long if it is taken out first.
            event_of, tell = pipeline.plain_event, self._audience.tell
            tell(event_of(text))
            return False
        return self.take(packed, item.logprobs)

    def take(self, packed: bytes, logprobs: Sequence[TokenLogprobs] = ()) -> bool:
        """The next tokens; True once a stop string has ended the choice. Raises `WireError` for
        more than were ordered, and for log-probabilities that are not one for each.
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
            self._audience(event)
        return self._pipeline.stopped

    def finish(self, reason: Reason) -> None:
        """No more tokens come."""
        for event in self._pipeline.finish(reason):
            if type(event) is not Finished:
                self.has_text = True
            self._audience(event)

    def complete_already(self) -> Reason | None:
        """Why the choice is complete with the tokens that are here, if it is."""
        last = unpack_tokens(bytes(self.packed[-TOKEN_BYTES:]))
        if not self._end_ids.isdisjoint(last):
            return "stop"
        return None if self.num_left else "length"
