"""Token ids of one choice -> turn events."""

from collections.abc import Sequence

from gateway.core.events import TurnEvent
from protocol.messages import TokenLogprobs


class OutputPipeline:
    """detokenise -> stop strings -> tool calls, for the choice `index`.

    `completion_tokens` counts through the token that completes a stop string; `stopped` says that
    one matched: the caller aborts the work and calls `finish("stop")`. Ids in `silent_ids` (the
    tokens that end the sequence) have no text.
    """

    stopped: bool
    completion_tokens: int

    def __init__(
        self,
        detokenizer: object,
        stops: object,
        tool_parser: object | None,
        *,
        index: int = 0,
        silent_ids: frozenset[int] = frozenset(),
    ) -> None:
        raise NotImplementedError

    def push(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> list[TurnEvent]:
        """Events of new tokens (ids as ints; `logprobs` one per id or none)."""
        raise NotImplementedError

    def finish(self, reason: str) -> list[TurnEvent]:
        """The rest of the text and `Finished`; reason "stop" or "length" of the worker."""
        raise NotImplementedError
