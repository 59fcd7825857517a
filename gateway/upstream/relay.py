"""The stream relay: passes a provider's stream on to the client.

Owns what is passed on in each state of a stream (`relay_state.py`): before its first content it is
nothing, so that another provider can still be asked. Errors, garbage, an end that is none and what
follows `[DONE]` are never passed on. Must not know connections or deadlines.
"""

from collections.abc import Callable
from typing import Final

from gateway.api import DONE
from gateway.upstream.choice_forms import (
    has_null_choices,
    may_have_parts,
    with_deltas,
    with_texts,
)
from gateway.upstream.chunk_roles import ChunkRoles
from gateway.upstream.error_words import ReportedError, error_of, quoted, reported_in
from gateway.upstream.mended_json import TextMender
from gateway.upstream.relay_state import HELD, OVER, TABLE, USUAL, RelayEvent, RelayState
from gateway.upstream.sse import (
    EventKind,
    data_of,
    error_of_event,
    has_text,
    is_plain,
    kind_of,
    kind_within,
    split_events,
)
from gateway.upstream.stream_end import MAX_KEPT_BYTES, BrokenEnd, StreamEnd
from gateway.upstream.usage import StreamUsage, may_contain_usage
from protocol.errors import HermaError

MAX_HELD_BYTES: Final = 2**16
"""The bound on events before the first content; with more bytes the answer counts as begun."""


_NEWS: Final = frozenset({EventKind.CONTENT, EventKind.DONE})
_CHUNKS: Final = frozenset({EventKind.CONTENT, EventKind.EMPTY})
_MEAN_CONTENT: Final = frozenset({HELD, RelayState.MESSAGES})
"""States in which a message is a content."""


class BadStream(HermaError):
    """The stream contains an error, garbage or an end that is none; clients may read the text.

    `words` are the server's explanation, if it gave one. `reported` is the error in the stream.
    `filtered` is the whole stream if a filter of the server ended the answer before its first
    content.
    """

    def __init__(
        self,
        text: str,
        *,
        words: str = "",
        reported: ReportedError | None = None,
        filtered: bytes | None = None,
    ) -> None:
        self.reported = reported or ReportedError(words)
        super().__init__(f"{text}: {self.reported.words}" if self.reported.words else text)
        self.words = self.reported.words or text
        self.filtered = filtered


class StreamRelay:
    """Takes whole events; `on_events` gets those for the client, unchanged unless `end` mends the
    calls in them, or they repeat the role. `may_begin` is called once before, and can refuse. In
    the stream of a chat (`is_chat`) each choice of a chunk has a delta whose content is a text, in
    that of raw prompts (`is_raw`) a text.
    """

    def __init__(
        self,
        on_events: Callable[[bytes], None],
        usage: StreamUsage,
        may_begin: Callable[[], bool],
        end: StreamEnd | None = None,
        *,
        is_chat: bool = False,
        is_raw: bool = False,
    ) -> None:
        self._is_chat = is_chat
        self._is_raw = is_raw
        self._state = HELD
        # The event by which the next content begins the stream. For raw prompts each chunk is
        # looked at.
        self._begins_as = RelayEvent.PARTS if is_raw else RelayEvent.CONTENT
        self._roles = ChunkRoles(is_open=is_chat)
        self._on_events = on_events
        self._usage = usage
        self._may_begin = may_begin
        self._end = end or StreamEnd()
        self._held = b""
        self._latest = b""
        self._words = ""
        self._mender: TextMender | None = None

    @property
    def has_begun(self) -> bool:
        """Whether something was passed on."""
        return self._state is not HELD

    @property
    def has_news(self) -> bool:
        """Whether what was taken last, within an answer that has begun, contains a part of it: some
        servers send comments, blank lines or empty chunks for ever.
        """
        latest = map(kind_of, split_events(self._latest))
        return self._end.has_waiting or not _NEWS.isdisjoint(latest)

    @property
    def is_finished(self) -> bool:
        """Whether every choice that came has said why it ended."""
        return self._end.is_finished

    @property
    def is_whole(self) -> bool:
        """Whether all choices have come and ended: some servers send no `[DONE]` after that."""
        return self.has_begun and self._end.is_whole

    @property
    def last_words(self) -> str:
        """What the server said in an event of no known form; some fail in such a way."""
        return self._words

    def pass_single(self, data: bytes) -> bool:
        """If `data` is one event without usage, calls or an end, within an answer that has begun,
        pass it on and return True. This is a fast path of `take`, with a third of its calls.
        """
        end, roles = self._end, self._roles
        has_calls = (
            data.find(b'"tool_calls"') >= 0
            and data.find(b'"tool_calls":null') < 0
            and data.find(b'"tool_calls": null') < 0
        )
        is_end = (
            data.find(b'"finish_reason"') >= 0
            and data.find(b'"finish_reason":null') < 0
            and data.find(b'"finish_reason": null') < 0
        )
        if (
            self._state is not USUAL
            or roles.is_open
            or (roles.is_repeated and data.find(roles.again) < 0)
            or not end.is_single
            or (self._is_chat and data.find(b'"delta"') < 0)
            or (is_end and (has_calls or not end.ends_plainly(data)))
            or (has_calls and not self._goes_on(data))
            or not is_plain(data)
            or (data.find(b'"usage"') >= 0 and may_contain_usage(data))
        ):
            return False
        if roles.is_repeated:
            data = data.replace(roles.again, roles.plain, 1)
        self._latest = data
        if is_end:
            end.end_plainly()
        if has_calls:
            end.kept += data
        if data.find(b'"reasoning') >= 0:
            end.keep_thought(data)
        self._on_events(data)
        return True

    def _goes_on(self, data: bytes) -> bool:
        """Whether a chunk with calls only goes on with the arguments of one."""
        steady = self._end.steady
        if steady is None or len(self._end.kept) > MAX_KEPT_BYTES:
            return False
        return (steady[0] in data or steady[1] in data) and data.count(b'"function"') == 1

    def take(self, events: bytes) -> None:
        """Pass events on, only whole ones. Raises `BadStream` at the first error or garbage, and at
        an end that is not valid. After the end only the usage counts.
        """
        self._latest = b""
        self._end.has_waiting = False
        if not events:
            return
        good: list[bytes] = []
        for given in split_events(events):
            if self._state is OVER:
                # The owner must get the end before a later usage, to know that no client has the
                # usage.
                self._pass_on(b"".join(good))
                good.clear()
                self._usage.take_late(given)
                continue
            event, kind = given, kind_of(given) if self._state is HELD else kind_within(given)
            is_odd = event.find(b'"delta"') < 0 or event.find(b'"error"') >= 0
            if is_odd or self._state is not USUAL or kind is EventKind.GARBAGE:
                event, kind = self._in_usual_form(event, kind)
            try:
                checked = self._checked(event, kind)
            except BadStream:
                self._pass_on(b"".join(good))
                raise
            if kind is EventKind.CONTENT and self._state is HELD and checked is not event:
                kinds = map(kind_of, split_events(checked))
                # The beginning of a call without its name is kept back, and begins no answer.
                kind = kind if EventKind.CONTENT in kinds else EventKind.EMPTY
            if (
                kind is EventKind.CONTENT
                and self._state is HELD
                and not self._begin(self._begins_as, checked)
            ):
                return
            is_chunk = kind in _CHUNKS
            if kind is EventKind.HOLLOW or (is_odd and is_chunk and self._is_no_chunk(event)):
                # The standard says to ignore an event without data, but some clients parse it as
                # JSON; and they take any object for a chunk, and fail at one without choices.
                continue
            if self._state is not HELD or kind is not EventKind.COMMENT:
                good.append(checked)
        self._pass_on(b"".join(good))

    def _in_usual_form(self, event: bytes, kind: EventKind) -> tuple[bytes, EventKind]:
        """A chunk with a delta in each choice, or a text in those of raw prompts, and without a
        field `error`. Other events stay as they are.
        """
        if kind is EventKind.GARBAGE:
            event, kind = self._mended(event)
        if kind not in _CHUNKS or not self._may_differ(event):
            return event, kind
        if self._is_raw:
            found = with_texts(event)
            return found, kind_of(found)
        has_delta = event.find(b'"delta"') >= 0
        if not has_delta:
            self._note_words(event)
        found = with_deltas(event, counts=self._state in _MEAN_CONTENT)
        kind = kind_of(found)
        if found is not event and kind is EventKind.CONTENT and self._state is HELD:
            in_message = not has_delta and has_text(found)
            usual = RelayEvent.PARTS if may_have_parts(event) else RelayEvent.CONTENT
            self._begins_as = RelayEvent.MESSAGE if in_message else usual
        return found, kind

    def _with_one_role(self, event: bytes, kind: EventKind) -> bytes:
        if kind not in _CHUNKS:
            return event
        return self._roles.once(event, has_content=kind is EventKind.CONTENT)

    def _may_differ(self, event: bytes) -> bool:
        """Whether a chunk may be in another form than its clients read."""
        has_delta = event.find(b'"delta"') >= 0
        if self._is_raw:
            return has_delta or event.find(b'"message"') >= 0 or event.find(b'"text"') < 0
        is_odd = not has_delta or event.find(b'"error"') >= 0 or may_have_parts(event)
        return self._is_chat and is_odd

    def _mended(self, event: bytes) -> tuple[bytes, EventKind]:
        """`event` if its data cannot be read even so, and its kind."""
        if self._mender is None:
            self._mender = TextMender()
        data = self._mender.mended(data_of(event))
        if data is None and self.is_whole:
            event = b": \n\n"  # after the end of all choices it does not matter
        elif data is not None:
            event = b"data: " + data + b"\n\n"
        return event, kind_of(event) if self._state is HELD else kind_within(event)

    def _checked(self, event: bytes, kind: EventKind) -> bytes:
        """What the client gets for `event`. Raises `BadStream`."""
        if self._roles.is_open or (self._is_chat and event.find(b'"role"') >= 0):
            event = self._with_one_role(event, kind)
        if kind is EventKind.CONTENT and event.find(b'"reasoning') >= 0:
            self._end.keep_thought(event)
        if kind is not EventKind.COMMENT and event.find(b'"delta"') < 0:
            self._note_words(event)
        match kind:
            case EventKind.ERROR | EventKind.GARBAGE:
                raise _failure(event, kind)
            case EventKind.DONE:
                return self._checked_end()
            case EventKind.CONTENT if event.find(b'"tool_calls"') >= 0 or _says_end(event):
                pass
            case EventKind.CONTENT | EventKind.EMPTY if not self._end.is_single:
                pass
            case _:
                return event
        try:
            event = self._end.take(event)
        except BrokenEnd as error:
            raise BadStream(str(error), words=error.words) from error
        if self._state is HELD and (self._end.is_filtered or self._end.calls_nothing):
            self._check_first(event)
        return event

    def _check_first(self, event: bytes) -> None:
        """Look at an end before any content. Raises `BadStream`, because others can be asked."""
        if any(map(has_text, split_events(event))):
            return
        if self._end.is_filtered:
            held = self._held + event + DONE
            raise BadStream("ended the answer by its filter", filtered=held)
        raise BadStream("said that it calls a tool, and called none")

    def _is_no_chunk(self, event: bytes) -> bool:
        """Whether an object in a stream is no chunk, as a ping, or an exception in a
        form that is no known error.
        """
        is_read = self._is_chat or self._is_raw
        has_choices = event.find(b'"choices"') >= 0 and not has_null_choices(event)
        return is_read and not has_choices and not may_contain_usage(event)

    def note_rest(self, rest: bytes) -> None:
        """Keep the words after the last event, for the error of a stream without a valid end."""
        if (error := error_of(400, rest)) is not None:
            self._words = quoted(error.message)

    def _note_words(self, event: bytes) -> None:
        """Keep the words of an event that is no chunk, for an end that is none."""
        self.note_rest(data_of(event))

    def _checked_end(self) -> bytes:
        if self._state is HELD:
            raise BadStream("ended its stream without an answer", words=self._words)
        try:
            rest = self._end.check()
        except BrokenEnd as error:
            raise BadStream(str(error), words=self._words) from error
        self._state = TABLE[self._state, RelayEvent.DONE]
        return rest + DONE

    def _begin(self, event: RelayEvent, first: bytes = b"") -> bool:
        """Returns whether the stream may be passed on; `first` is its first content."""
        if may_begin := self._may_begin():
            self._state = TABLE[self._state, event]
            self._usage.first = first
        return may_begin

    def _pass_on(self, events: bytes) -> None:
        self._latest = events
        if not events:
            return
        events = self._usage.take(events)
        if self._state is OVER:
            self._usage.end()
        if self._state is HELD:
            self._held += events
            if len(self._held) <= MAX_HELD_BYTES or not self._begin(RelayEvent.FLOOD):
                return
            events = b""
        if self._held:
            events, self._held = self._held + events, b""
        if events:
            self._on_events(events)


def _failure(event: bytes, kind: EventKind) -> BadStream:
    """The failure that an event reports which is no part of an answer."""
    if kind is EventKind.GARBAGE:
        return BadStream("sent what is no JSON object")
    return BadStream("sent an error in its stream", reported=reported_in(error_of_event(event)))


def _says_end(event: bytes) -> bool:
    """Whether a chunk says why an answer ended; `pass_single` asks the same without a call."""
    return (
        event.find(b'"finish_reason"') >= 0
        and event.find(b'"finish_reason":null') < 0
        and event.find(b'"finish_reason": null') < 0
    )
