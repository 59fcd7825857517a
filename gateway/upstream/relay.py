"""The stream relay: passes a provider's stream on to the client.

Owns the moment at which the stream becomes an answer: before its first content nothing is passed
on, so that another provider can still be asked. Errors and garbage are never passed on. Must not
know connections or deadlines.
"""

import re
from collections.abc import Callable
from typing import Final

from gateway.upstream.sse import Kind, is_plain, kind_of, kind_within, split_events
from gateway.upstream.usage import StreamUsage, may_contain_usage
from protocol.errors import HermaError

_FINISH: Final = re.compile(rb'"finish_reason"\s*:\s*"')

MAX_HELD_BYTES: Final = 2**16
"""The bound on events before the first content; with more bytes the answer counts as begun."""


_NEWS: Final = frozenset({Kind.CONTENT, Kind.DONE})


class BadStream(HermaError):
    """The stream contains an error or garbage; clients may read the text."""


class StreamRelay:
    """Takes whole events; `on_events` gets those for the client, unchanged. `may_begin` is called
    once before, and can refuse. `has_begun`: something was passed on.
    """

    def __init__(
        self,
        on_events: Callable[[bytes], None],
        usage: StreamUsage,
        may_begin: Callable[[], bool],
    ) -> None:
        self._on_events = on_events
        self._usage = usage
        self._may_begin = may_begin
        self._held = b""
        self._latest = (b"", b"")
        self._has_events = False
        self.has_begun = False

    @property
    def has_news(self) -> bool:
        """Whether what was taken last, within an answer that has begun, contains a part of it: some
        servers send comments, blank lines or empty chunks for ever.
        """
        latest = split_events(self._latest[1]) if self._has_events else []
        return any(kind_of(event) in _NEWS for event in latest)

    @property
    def is_finished(self) -> bool:
        """Whether a choice has said why it ended: some servers send no `[DONE]` after that."""
        return any(_FINISH.search(events) for events in self._latest)

    def pass_single(self, data: bytes) -> bool:
        """If `data` is one event without usage, within an answer that has begun, pass it on and
        return True. This is a fast path of `take`, with a third of its calls.
        """
        if (
            not self.has_begun
            or not is_plain(data)
            or (b'"usage"' in data and may_contain_usage(data))
        ):
            return False
        self._latest = self._latest[1], data
        self._has_events = True
        self._on_events(data)
        return True

    def take(self, events: bytes) -> None:
        """Pass events on; none after a mere part of one. Raises `BadStream` at the first error or
        garbage.
        """
        self._has_events = bool(events)
        if not events:
            return
        good: list[bytes] = []
        for event in split_events(events):
            kind = kind_within(event) if self.has_begun else kind_of(event)
            if kind is Kind.CONTENT:
                if not (self.has_begun or self._begin()):
                    return
            elif problem := self._problem(kind):
                self._pass_on(b"".join(good))
                raise BadStream(problem)
            if kind is Kind.HOLLOW:
                # The standard says to ignore such an event, but some clients parse it as JSON.
                continue
            if self.has_begun or kind is not Kind.COMMENT:
                good.append(event)
        self._pass_on(b"".join(good))

    def _begin(self) -> bool:
        self.has_begun = self._may_begin()
        return self.has_begun

    def _problem(self, kind: Kind) -> str | None:
        match kind:
            case Kind.ERROR:
                return "sent an error in its stream"
            case Kind.GARBAGE:
                return "sent what is no JSON object"
            case Kind.DONE if not self.has_begun:
                return "ended its stream without an answer"
            case _:
                return None

    def _pass_on(self, events: bytes) -> None:
        self._latest = self._latest[1], events
        events = self._usage.take(events)
        if not self.has_begun:
            self._held += events
            if len(self._held) <= MAX_HELD_BYTES or not self._may_begin():
                return
            self.has_begun = True
            events = b""
        if self._held:
            events, self._held = self._held + events, b""
        if events:
            self._on_events(events)
