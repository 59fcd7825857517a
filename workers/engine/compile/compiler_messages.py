"""What an engine and the process that compiles its kernels say to each other: lines of JSON.

Owns the messages. The engine's are two: its configuration, then the directory of its model. Must
not import torch or Triton: the engine speaks before it imports them.
"""

from typing import Final

import msgspec

from config import WorkerConfig


class Listed(msgspec.Struct, frozen=True, tag="listed"):
    """These will be compiled, by id, in this order, by so many processes."""

    ids: tuple[str, ...]
    processes: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Triton's cache has it: it was found there, or compiled. Or it was not: `error` says why."""

    id: str
    name: str
    seconds: float
    found: bool = False
    error: str = ""


Word = Listed | Ready

_ENCODER: Final = msgspec.json.Encoder()
_WORDS: Final = msgspec.json.Decoder(Word)


def line_of(word: Word | WorkerConfig | str) -> bytes:
    """One line, with its end."""
    return _ENCODER.encode(word) + b"\n"


def read_word(line: bytes) -> Word:
    """Raises `msgspec.MsgspecError`."""
    word: Word = _WORDS.decode(line)
    return word
