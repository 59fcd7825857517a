"""What one choice has given so far, over all workers that worked on it.

Owns its token ids, their bound, and whether a client may have seen something of them. Must not know
workers or how ids become events.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from gateway.core.events import Finished, TurnEvent
from gateway.core.output import OutputPipeline
from protocol.errors import WireError
from protocol.messages import TokenItem, TokenLogprobs
from protocol.tokens import TOKEN_BYTES, unpack_tokens

Reason = Literal["stop", "length"]


class ChoiceOutput:
    """Takes ids in; events go to `emit`. `end_ids` end a sequence, at the latest `max_tokens` do.

    `num_tokens` came. `packed` are those, as on the wire: of a thousand
    long answers a list of numbers is most of the memory. `has_text`: the client may have seen
    something of it. `num_unsent`: tokens that the client pays for though workers do not send them,
    as the one that ended the sequence.
    """

    __slots__ = (
        "_emit",
        "_end_ids",
        "_max_tokens",
        "_pipeline",
        "has_text",
        "num_tokens",
        "num_unsent",
        "packed",
    )

    def __init__(
        self,
        pipeline: OutputPipeline,
        emit: Callable[[TurnEvent], object],
        *,
        max_tokens: int,
        end_ids: frozenset[int],
    ) -> None:
        self._pipeline = pipeline
        self._emit = emit
        self._max_tokens = max_tokens
        self._end_ids = end_ids
        self.packed = bytearray()
        self.num_tokens = 0
        self.has_text = False
        self.num_unsent = 0

    @property
    def num_left(self) -> int:
        """How many more may come."""
        return self._max_tokens - self.num_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens that the client pays for."""
        return self._pipeline.completion_tokens + self.num_unsent

    @property
    def reasoning_tokens(self) -> int:
        """Those of them that were thoughts."""
        return self._pipeline.reasoning_tokens

    def take_item(self, item: TokenItem) -> bool:
        """`take` for tokens as they come. A lone one that is plain text goes the short way."""
        packed = item.ids
        if self.num_tokens < self._max_tokens:
            event = self._pipeline.push_plain(packed)
            if event is not None:
                self.packed += packed
                self.num_tokens += 1
                self.has_text = True
                self._emit(event)
                return False
        return self.take(packed, item.logprobs)

    def take(self, packed: bytes, logprobs: Sequence[TokenLogprobs] = ()) -> bool:
        """The next tokens; True once a stop string has ended the choice. Raises `WireError` for
        more than were ordered.
        """
        ids = unpack_tokens(packed)
        num_tokens = self.num_tokens + len(ids)
        if num_tokens > self._max_tokens:
            raise WireError(f"over {self._max_tokens} tokens came, against the order")
        self.packed += packed
        self.num_tokens = num_tokens
        for event in self._pipeline.push(ids, logprobs):
            self.has_text = True
            self._emit(event)
        return self._pipeline.stopped

    def finish(self, reason: Reason) -> None:
        """No more tokens come."""
        for event in self._pipeline.finish(reason):
            if type(event) is not Finished:
                self.has_text = True
            self._emit(event)

    def complete_already(self) -> Reason | None:
        """Why the choice is complete with the tokens that are here, if it is."""
        last = unpack_tokens(bytes(self.packed[-TOKEN_BYTES:]))
        if not self._end_ids.isdisjoint(last):
            return "stop"
        return None if self.num_left else "length"
