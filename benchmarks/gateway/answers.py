"""Checks an answer while its bytes arrive.

Owns the parsing of chunked bodies and events, and the comparison with the expected ones. Must not
know sockets or clocks. It costs a few microseconds per read, because it shares the cores with what
is measured.
"""

from __future__ import annotations

import re
from typing import Final, Protocol, final

_CONTENT: Final = re.compile(rb'"delta":\{[^{}]*?"content":"([^"\\]*)"')
_WHOLE: Final = re.compile(rb'"content":"([^"\\]*)"')
_COUNTED: Final = re.compile(rb'"completion_tokens": ?(\d+)')
_CRLF: Final = b"\r\n"
_SHOWN_BYTES: Final = 200


class WrongAnswer(Exception):
    """An answer is wrong; the text says how."""


class AnswerCheck(Protocol):
    """Takes a body's bytes in order and raises `WrongAnswer` at the first wrong one."""

    def feed(self, data: bytes) -> int:
        """Take bytes of the body; return how many tokens or upstream events they complete."""

    def end(self) -> None:
        """The body has ended."""


@final
class Dechunker:
    """The body of a chunked response. `is_over` is set after its last chunk."""

    def __init__(self) -> None:
        self.is_over = False
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """The body's bytes in `data`, whole chunks only."""
        data = self._pending + data if self._pending else data
        parts: list[bytes] = []
        at = 0
        while (end := data.find(_CRLF, at)) >= 0:
            size = int(data[at:end], 16)
            begin = end + 2
            if len(data) < begin + size + 2:
                break
            at = begin + size + 2
            if size == 0:
                self.is_over = True
                break
            parts.append(data[begin : begin + size])
        self._pending = data[at:]
        return b"".join(parts)


@final
class StreamCheck:
    """A stream of the synthetic engine's words: all of them in order, and one end."""

    def __init__(self, expected: bytes, num_tokens: int) -> None:
        self._expected = expected
        self._num_tokens = num_tokens
        self._at = 0
        self._num_seen = 0
        self._pending = b""
        self._tail = b""
        self._last = b""

    def feed(self, data: bytes) -> int:
        """Count the words in it, which must be the next expected ones."""
        if self._pending:
            data = self._pending + data
        end = data.rfind(b"\n\n") + 2
        self._pending = data[end:] if end > 1 else data
        if end == 1:
            return 0
        pieces = _CONTENT.findall(data, 0, end)
        text = b"".join(pieces)
        if not self._expected.startswith(text, self._at):
            wanted = self._expected[self._at : self._at + len(text)]
            raise WrongAnswer(f"{text!r} came after {self._num_seen} tokens instead of {wanted!r}")
        self._last = data[max(0, end - _SHOWN_BYTES) : end]
        self._at += len(text)
        num_new = text.count(b" ")
        self._num_seen += num_new
        if self._at == len(self._expected):
            self._tail += data[:end]
        return num_new

    def end(self) -> None:
        """Check for all words, the count in the usage, and one [DONE] as the last event."""
        if self._num_seen != self._num_tokens or self._at != len(self._expected):
            count = f"{self._num_seen} of {self._num_tokens} tokens came"
            raise WrongAnswer(f"{count}, and at the end {self._last!r}")
        counted = _COUNTED.findall(self._tail)
        if not counted or int(counted[-1]) != self._num_tokens:
            raise WrongAnswer(f"the usage counts {counted}, not {self._num_tokens} tokens")
        if not self._tail.endswith(b"data: [DONE]\n\n") or self._tail.count(b"[DONE]") != 1:
            raise WrongAnswer(f"the stream ends with {self._tail[-80:]!r}")


@final
class BytesCheck:
    """A body that must be exactly these bytes, in any chunks."""

    def __init__(self, expected: bytes) -> None:
        self._expected = expected
        self._at = 0

    def feed(self, data: bytes) -> int:
        """Count the events in it."""
        if not self._expected.startswith(data, self._at):
            wanted = self._expected[self._at : self._at + len(data)]
            raise WrongAnswer(f"at byte {self._at}: {data[:200]!r} instead of {wanted[:200]!r}")
        self._at += len(data)
        return data.count(b"\n\n")

    def end(self) -> None:
        """Check for all of them."""
        if self._at != len(self._expected):
            raise WrongAnswer(f"{self._at} of {len(self._expected)} bytes came")


@final
class WholeCheck:
    """An answer in one piece: its text and its usage."""

    def __init__(self, expected: bytes, num_tokens: int) -> None:
        self._expected = expected
        self._num_tokens = num_tokens
        self._body = b""

    def feed(self, data: bytes) -> int:
        """Counts nothing before the end."""
        self._body += data
        return 0

    def end(self) -> None:
        """Check the whole. Raises `WrongAnswer`."""
        text, counted = _WHOLE.search(self._body), _COUNTED.search(self._body)
        if text is None or text[1] != self._expected:
            raise WrongAnswer(f"not the text {self._expected[:80]!r}: {self._body[:600]!r}")
        if counted is None or int(counted[1]) != self._num_tokens:
            raise WrongAnswer(f"the usage does not count {self._num_tokens}: {self._body!r}")
