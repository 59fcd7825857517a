"""Reading a config.json: each key with its type, and one line for what is wrong with it.

Owns the texts of these errors. Must not know families.
"""

import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from protocol.errors import ConfigError
from workers.model_dir import POOLING_NAME

_REMEDY: Final = "choose another model"
_MOST: Final = 2**31 - 1
_MOST_LAYERS: Final = 10_000
"""No model has more; a broken number would take the host's memory before anything is refused."""


_OUTER: Final = ("dtype", "torch_dtype", "quantization_config")


class ConfigFile:
    """The object of a config.json, or one in it; all methods raise `ConfigError`."""

    def __init__(self, path: Path, raw: Mapping[str, Any]) -> None:
        self.path = path
        self.raw = raw

    @property
    def stated(self) -> dict[str, Any]:
        """The fields that are not null."""
        return {key: value for key, value in self.raw.items() if value is not None}

    def with_defaults(self, *defaults: Mapping[str, Any]) -> "ConfigFile":
        """The file with these where it says nothing, the later ones first; a null stays one."""
        merged: dict[str, Any] = {}
        for table in (*defaults, self.raw):
            merged |= table
        return ConfigFile(self.path, merged)

    def outer(self, *more: str) -> dict[str, Any]:
        """What a file of several networks says of all of them, and the fields `more`."""
        return {key: self.raw[key] for key in (*_OUTER, *more) if key in self.raw}

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer from `least` on. A default None makes it required."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            kind = "a positive integer" if least == 1 else f"an integer of {least} or more"
            raise self.error(f"{key} is {value!r}, not {kind}: fetch it again")
        if value > (most := _MOST_LAYERS if key == "num_hidden_layers" else _MOST):
            raise self.error(f"{key} is {value}, more than {most}: fetch it again")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive, finite number."""
        value = self._value(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= sys.float_info.max:  # type: ignore[operator]
            raise self.error(f"{key} is {value!r}, not a positive number: fetch it again")
        return float(value)  # type: ignore[arg-type]

    def flag(self, key: str, *, default: bool = False) -> bool:
        """A truth value."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} is {value!r}, not true or false: fetch it again")
        return value

    def table(self, *keys: str) -> "ConfigFile":
        """The first of these objects that is there, else one of no keys."""
        for key in keys:
            value = self.raw.get(key)
            if isinstance(value, dict):
                return ConfigFile(self.path, value)
            if value is not None:
                raise self.error(f"{key} is {value!r}, not an object: fetch it again")
        return ConfigFile(self.path, {})

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of `count` positive numbers."""
        value = self.raw.get(key)
        if not isinstance(value, list) or len(value) != count:
            raise self.error(f"{key} is no list of {count} numbers: fetch it again")
        items = ConfigFile(self.path, {f"{key}[{at}]": item for at, item in enumerate(value)})
        return tuple([items.number(name) for name in items.raw])

    def words(self, key: str, count: int, known: Collection[str]) -> tuple[str, ...] | None:
        """The first `count` words of a list, all `known`; None if the key is not there."""
        value = self.raw.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < count:
            raise self.error(f"{key} is no list of {count} names: fetch it again")
        for word in value[:count]:
            if not isinstance(word, str) or word not in known:
                raise self.lacks(f"{key} with {word!r}")
        return tuple(value[:count])

    def refuse(self, *keys: str) -> None:
        """Keys that stand for something that we lack, wherever they are set."""
        for key in keys:
            if self.raw.get(key):
                raise self.lacks(f"{key} = {self.raw[key]!r}")

    def lacks(self, what: str) -> ConfigError:
        """The error of a model that asks for more than we have."""
        return self.error(f"{what} is not supported: {_REMEDY}")

    def error(self, text: str) -> ConfigError:
        """`text` behind the file's name."""
        return ConfigError(f"{self.path}: {text}")

    def _value(self, key: str, default: object) -> object:
        """JSON's null means the default, too."""
        value = self.raw.get(key)
        return default if value is None else value


def pools_last_token(model_dir: Path) -> bool:
    """Whether the directory says that its model was made for embeddings, each the last token's
    state, in the file of sentence-transformers. Raises `ConfigError` for another pooling.
    """
    path = model_dir / POOLING_NAME
    if not path.exists():
        return False
    try:
        pooling = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(pooling, dict) or pooling.get("pooling_mode_lasttoken") is not True:
        raise ConfigError(f"{path} asks for a pooling that is not supported: only the last token's")
    return True
