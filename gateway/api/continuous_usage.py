"""The usage so far in every chunk of a stream, as vLLM's `continuous_usage_stats` has it.

Owns how running counts get into chunks that another formatter wrote. A running count is a `Usage`
event that comes while a choice still goes on; the last one is the stream's own. Must not know
which API it is.
"""

from typing import Final

import msgspec

from gateway.api.api_format import Dialect, StreamFormatter
from gateway.api.chat_formatter import CHUNK_END, usage_object
from gateway.api.errors import ApiError
from gateway.api.events import (
    ChoiceEvent,
    Finished,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)

COUNTED: Final = (TextDelta, ReasoningDelta, ToolCallDelta, Finished)
"""Events with which a running count goes, when it is wanted."""

_encode = msgspec.json.Encoder().encode


def with_continuous_usage(dialect: Dialect, num_choices: int) -> Dialect:
    """`dialect` for a stream of so many choices that tells its usage all along."""
    return Dialect(
        id_prefix=dialect.id_prefix,
        streamed=lambda head: ContinuousUsage(dialect.streamed(head), num_choices),
        whole=dialect.whole,
    )


class ContinuousUsage:
    """A `StreamFormatter` around another one."""

    def __init__(self, inner: StreamFormatter, num_choices: int) -> None:
        self._inner = inner
        self._num_going_on = num_choices
        self._running: Usage | None = None

    def head(self, num_choices: int = 1) -> bytes:
        """As the inner one."""
        return self._inner.head(num_choices)

    def keep_alive(self) -> bytes:
        """As the inner one."""
        return self._inner.keep_alive()

    def format(self, event: ChoiceEvent) -> bytes:
        """The inner one's bytes, with the running count in them."""
        if isinstance(event, Usage) and self._num_going_on:
            self._running = event
            return b""
        chunk = self._inner.format(event)
        if isinstance(event, Finished):
            self._num_going_on -= 1
        if self._running is None or not chunk or not isinstance(event, COUNTED):
            return chunk
        usage = _encode(usage_object(self._running))
        return chunk[: -len(CHUNK_END)] + b',"usage":' + usage + CHUNK_END

    def error(self, error: ApiError) -> bytes:
        """As the inner one."""
        return self._inner.error(error)

    def done(self) -> bytes:
        """As the inner one."""
        return self._inner.done()
