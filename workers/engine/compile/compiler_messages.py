"""Messages between an engine and the process that compiles its kernels: lines of JSON.

Owns the messages. The engine's are two: its configuration, then the directory of its model. Must
not import torch or Triton: the engine sends before it imports them.
"""

from typing import Final

import msgspec

from config import WorkerConfig


class Listed(msgspec.Struct, frozen=True, tag="listed"):
    """The kernels that will be compiled, by id, in this order, and the number of processes."""

    ids: tuple[str, ...]
    processes: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A kernel is in Triton's cache, found there or compiled; or `error` is why it is not."""

    id: str
    name: str
    seconds: float
    found: bool = False
    error: str = ""


CompilerMessage = Listed | Ready

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(CompilerMessage)


def encode_line(message: CompilerMessage | WorkerConfig | str) -> bytes:
    """One line, with its end."""
    return _ENCODER.encode(message) + b"\n"


def decode_line(line: bytes) -> CompilerMessage:
    """Raises `msgspec.MsgspecError`."""
    message: CompilerMessage = _DECODER.decode(line)
    return message
