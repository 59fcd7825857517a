"""Requests of real clients with every text replaced: what is kept is their shape.

Owns the replacement and the file. Lines become neutral words of the same length, the same line the
same words, so that what two requests share they share still. Paths, ids and dates become neutral
ones. Must not know how requests are recorded or replayed.
"""

import hashlib
import json
import lzma
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

SHAPES: Final = Path(__file__).parent / "shapes"
MAX_SPACED: Final = 10
MAX_KEPT: Final = 48
"""Longer lines are replaced, with a space and without one; shorter ones are names and enums."""

_WORDS: Final = (
    "the",
    "a",
    "file",
    "is",
    "read",
    "by",
    "one",
    "tool",
    "text",
    "goes",
    "to",
    "part",
)
_HOME: Final = re.compile(r"/(?:tmp|root|home)/[\w.\-/]*")
_ID: Final = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{24,}\b"
)
_CALL: Final = re.compile(r"\b(call|toolu|fc|msg|rs|resp|ses)_?(?=[\w-]*\d)[\w-]{8,}")
_DATE: Final = re.compile(r"\b20\d\d-\d\d-\d\d(?:[T ][\d:.]+Z?)?")
_HOST: Final = re.compile(r"127\.0\.0\.1:\d+")


class Shape(msgspec.Struct, frozen=True):
    """One request: the path behind the gateway's address, some headers, the body."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Neutral:
    """The replacement in one client's requests; ids that differ stay different."""

    def __init__(self, kept: Sequence[str]) -> None:
        self._kept = tuple(kept)
        self._ids: dict[str, str] = {}

    def of(self, value: Any) -> Any:
        """`value` with its texts replaced. Keys stay, as they are the shape."""
        if isinstance(value, dict):
            return {
                self._text(key) if " " in key else key: self.of(one) for key, one in value.items()
            }
        if isinstance(value, list):
            return [self.of(one) for one in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        text = self._plain(text)
        return "\n".join(self._line(line) for line in text.split("\n"))

    def _plain(self, text: str) -> str:
        text = _HOST.sub("127.0.0.1:8080", _DATE.sub("2026-01-02", _HOME.sub("/home/user", text)))
        text = _ID.sub(lambda found: self._id("00000000-0000-4000-8000-", found[0]), text)
        return _CALL.sub(lambda found: self._id(f"{found[1]}_", found[0]), text)

    def _id(self, begin: str, found: str) -> str:
        return self._ids.setdefault(found, f"{begin}{len(self._ids):012d}")

    def _line(self, line: str) -> str:
        if len(line) <= (MAX_SPACED if " " in line else MAX_KEPT):
            return line
        if any(kept in line for kept in self._kept):
            return line
        if line.startswith("{") and _is_json(line):
            return json.dumps(self.of(json.loads(line)))
        seed = hashlib.sha256(line.encode()).digest()
        words: list[str] = []
        while sum(map(len, words)) + len(words) < len(line):
            seed = hashlib.sha256(seed).digest()
            words += [_WORDS[byte % len(_WORDS)] for byte in seed]
        return " ".join(words)[: len(line)]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


_NEUTRAL_ID: Final = re.compile(
    rb"\b(00000000-0000-4000-8000-|(?:call|toolu|fc|msg|rs|resp|ses)_)0{6}(?=\d{6}\b)"
)


def own(text: bytes, number: int) -> bytes:
    """With ids that no other number below a million has: each client's begin at zero."""
    return _NEUTRAL_ID.sub(rb"\g<1>%06d" % number, text)


def write(name: str, shapes: Sequence[Shape]) -> None:
    """Keep a client's requests, compressed."""
    path = SHAPES / f"{name}.json.xz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(msgspec.json.encode(shapes), preset=9 | lzma.PRESET_EXTREME))


def read(path: Path) -> list[Shape]:
    """The requests in the order in which they were sent."""
    return msgspec.json.decode(lzma.decompress(path.read_bytes()), type=list[Shape])
