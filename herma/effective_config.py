"""The values of a configuration that took effect, and where each comes from.

Owns the text: TOML with a comment behind each value. Must not know what a key does. A configuration
holds names of environment variables and files instead of secrets, so nothing is hidden; hashes of
keys are.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from config import Config, Place, line_of, read_text

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_FROM_PROFILE: Final = frozenset({"token_budget", "max_gap_ms", "max_context"})
_HIDDEN: Final = frozenset({"hash"})


def effective_lines(config: Config, path: Path) -> Iterator[str]:
    """A line for each key of each table: its value, then `# FILE:LINE`, `# profile NAME` or
    `# default`. A key without a value is left out.
    """
    text = read_text(path)
    profiles = {model.name: model.profile for model in config.models}
    source = _Source(path, text, tomllib.loads(text), profiles)
    for name in config.__struct_fields__:
        value = getattr(config, name)
        if isinstance(value, tuple):
            for index, item in enumerate(value):
                header = f"[[{name}]]"
                yield from _table(header, item, (name, index), source)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                header = f"[{name}.{_key(key)}]"
                yield from _table(header, item, (name, key), source)
        elif isinstance(value, msgspec.Struct):
            yield from _table(f"[{name}]", value, (name,), source)
        else:
            yield f"{name} = {_toml(value)}"


class _Source(msgspec.Struct, frozen=True):
    path: Path
    text: str
    written: dict[str, Any]
    profiles: dict[str, str]

    def of(self, place: Place, table: msgspec.Struct) -> str:
        """Where the value at `place` comes from."""
        value: Any = self.written
        for part in place:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return self._unwritten(str(place[-1]), table)
        return f"{self.path}:{line_of(place, self.text)}"

    def _unwritten(self, key: str, table: msgspec.Struct) -> str:
        serves = getattr(table, "serves", None)
        if key in _FROM_PROFILE and serves in self.profiles:
            return f"profile {self.profiles[serves]}"
        if key == "gateways":
            return "[gateway] worker_bind"
        return "default"


def _table(header: str, table: msgspec.Struct, place: Place, source: _Source) -> Iterator[str]:
    yield ""
    yield header
    for key in table.__struct_fields__:
        value = getattr(table, key)
        if value is None:
            continue
        shown = '"..."' if key in _HIDDEN else _toml(msgspec.to_builtins(value))
        yield f"{key} = {shown}  # {source.of((*place, key), table)}"


def _toml(value: Any) -> str:  # noqa: ANN401 -- any value of TOML
    if isinstance(value, Mapping):
        inner = (f"{_key(key)} = {_toml(item)}" for key, item in value.items() if item is not None)
        return f"{{ {', '.join(inner)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)
