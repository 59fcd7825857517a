"""What has reached the client of a streamed chat, kept so that another upstream can go on with it.

Owns the text and the reasoning in the chunks that were passed on, and whether they are of a kind
that can be continued. Chunks are read many at a time: keeping one costs no call. Must not know
upstreams or requests.
"""

from __future__ import annotations

from typing import Any, Final, final

import msgspec

from gateway.upstream.sse import data_of, split_events
from protocol.reading import FAULTS

_DATA: Final = b"data: {"
_READ_EVERY: Final = 256
"""Chunks that are kept unread: 80 KB as most servers write them, of which 1 KB is text."""

MAX_CHARS: Final = 2**22
_CALLS: Final = "a call has begun"
_HEAD: Final = ("id", "object", "created", "model", "system_fingerprint")


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    tool_calls: Any = None
    function_call: Any = None
    refusal: Any = None
    audio: Any = None


class _Choice(msgspec.Struct):
    index: int | None = 0
    delta: _Delta | None = None
    finish_reason: Any = None
    logprobs: Any = None


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


_decode_chunks: Final = msgspec.json.Decoder(list[_Chunk]).decode
_decode_head: Final = msgspec.json.Decoder(dict[str, Any]).decode


@final
class SentAnswer:
    """The chunks of one stream. Who passes one on adds it to `chunks`, sets `has_begun`, counts
    `room` down and calls `read` when that is 0. `upstream_model` is the name of the model that
    began it, at its upstream.
    """

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.room = _READ_EVERY
        self.has_begun = False
        self.upstream_model = ""
        self.reasoning_field: str | None = None
        self.head: dict[str, Any] = {}
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._obstacle: str | None = None
        self._num_chars = 0
        self._num_chunks = 0
        self._counted = 0
        self._num_events = 0

    @property
    def num_tokens(self) -> int:
        """For operators, while it passes: each event with data counts as a token, which is what
        such servers send one at a time. What is billed is the usage at the end.
        """
        return self._num_events + sum(chunk.count(_DATA) for chunk in self.chunks)

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def tokens(self) -> int:
        """How many tokens were sent, at least: the server's count if the chunks have one, else one
        for each chunk.
        """
        return self._counted or self._num_chunks

    def add(self, events: bytes) -> None:
        """Keep events that were passed on."""
        self.chunks.append(events)
        self.room -= 1
        if self.room <= 0:
            self.read()

    def read(self) -> None:
        """Read the chunks that are kept."""
        chunks, self.chunks, self.room = b"".join(self.chunks), [], _READ_EVERY
        self._num_events += chunks.count(_DATA)
        if not chunks or self._obstacle is not None:
            return
        try:
            found = _decode_chunks(_as_array(chunks))
            if not self.head:
                data = map(data_of, split_events(chunks))
                head = _decode_head(next((one for one in data if one.startswith(b"{")), b"{}"))
                self.head = {name: head[name] for name in _HEAD if name in head}
        except FAULTS:
            self._obstacle = "its chunks are not of the usual form"
            return
        for chunk in found:
            for choice in chunk.choices or ():
                delta = choice.delta
                # The usual chunk of text, for which nothing is called.
                if (
                    delta is not None
                    and delta.content.__class__ is str
                    and delta.reasoning_content is delta.reasoning is delta.tool_calls is None
                    and delta.reasoning_details is delta.function_call is delta.refusal is None
                    and delta.audio is choice.finish_reason is choice.logprobs is None
                    and not choice.index
                    and delta.content
                ):
                    self._text += (delta.content,)
                    self._num_chunks += 1
                else:
                    self._take(choice)
            if chunk.usage is not None:
                self._counted = chunk.usage.completion_tokens or 0
        # Pieces are joined, so that a long answer is one string and its newest pieces.
        self._text, self._reasoning = [self.text], [self.reasoning]
        self._num_chars = len(self._text[0]) + len(self._reasoning[0])
        if self._num_chars > MAX_CHARS:
            self._obstacle = "it is too long"
            self._text, self._reasoning = [], []

    def obstacle(self) -> str | None:
        """Why no other upstream can go on behind what was sent; None if one can."""
        self.read()
        if self._obstacle is not None:
            return self._obstacle
        text = self.text
        if not text.strip():
            return "its thoughts are open" if any(self._reasoning) else "it has no text yet"
        if "<think" in text or "</think" in text:
            # A template would take them for thoughts, and write them elsewhere or not at all.
            return "its text contains thoughts"
        return None

    def _take(self, choice: _Choice) -> None:
        delta = choice.delta or _Delta()
        thought = delta.reasoning_content or delta.reasoning
        if choice.index:
            self._obstacle = "it has several choices"
        elif choice.finish_reason:
            self._obstacle = "it has said why it ends"
        elif choice.logprobs:
            self._obstacle = "it has log-probabilities"
        elif delta.tool_calls or delta.function_call:
            self._obstacle = _CALLS
        elif delta.refusal or delta.audio or not isinstance(delta.content or "", str):
            self._obstacle = "it is not all text"
        elif delta.reasoning_details and not isinstance(thought, str):
            self._obstacle = "its thoughts are hidden"
        elif thought and (any(self._text) or not isinstance(thought, str)):
            self._obstacle = "its thoughts are behind its text"
        elif thought:
            self._reasoning.append(thought)
            self.reasoning_field = "reasoning_content" if delta.reasoning_content else "reasoning"
            self._num_chunks += 1
        if self._obstacle is None and delta.content:
            self._text.append(delta.content)
            self._num_chunks += 1


def _as_array(chunks: bytes) -> bytes:
    """The data of whole events as one JSON array, so that they are decoded in one call."""
    if (
        chunks.startswith(b"data: {")
        and chunks.find(b"\r") < 0
        and chunks.find(b"data: [DONE]") < 0
        and chunks.count(b"\n") == 2 * chunks.count(b"\n\ndata: {") + 2
    ):
        return b"[" + chunks[6:-2].replace(b"\n\ndata: {", b",{") + b"]"
    data = [data_of(event) for event in split_events(chunks)]
    return b"[" + b",".join(one for one in data if one.startswith(b"{")) + b"]"
