"""Reads data that others have written, which may be malformed.

Owns the faults of a decoder. Must not know any message, nor what a file is for.
"""

from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from protocol.errors import ConfigError, WireError

FAULTS: Final = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError)
"""What msgspec raises: also for bad UTF-8 and half characters, deep nesting, and numbers that a
`__post_init__` refuses.
"""

_T_co = TypeVar("_T_co", covariant=True)
_T = TypeVar("_T")


class TypedDecoder(Protocol[_T_co]):
    """A decoder of msgspec, for JSON or MessagePack."""

    def decode(self, data: bytes, /) -> _T_co:
        """Raises one of `FAULTS`."""
        ...


def decoded(decoder: TypedDecoder[_T], data: bytes, what: str) -> _T:
    """The value in `data`. Raises `WireError` that says it is not `what`."""
    try:
        return decoder.decode(data)
    except FAULTS as error:
        raise WireError(f"not {what}: {error}") from error


def read_json(text: bytes | str) -> Any:  # noqa: ANN401 - any JSON
    """The JSON value in `text`; None if `text` is not JSON, and for null."""
    try:
        return msgspec.json.decode(text)
    except FAULTS:
        return None


def read_object(text: bytes | str) -> dict[str, Any] | None:
    """The JSON object in `text`; None if `text` is not one. Each event of a relayed answer is read
    by this, so it does not call `read_json`.
    """
    try:
        value = msgspec.json.decode(text)
    except FAULTS:
        return None
    return value if isinstance(value, dict) else None


def read_state(path: Path, kind: type[_T], remedy: str = "remove it") -> _T | None:
    """The record of that kind in a state file, as JSON; None if there is no file. Raises
    `ConfigError` with the remedy if it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, *FAULTS) as error:
        raise ConfigError(f"{path} cannot be read: {error}; {remedy}") from error


def objects_in(value: object) -> list[dict[str, Any]]:
    """The objects in a list; none if the value is not a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
