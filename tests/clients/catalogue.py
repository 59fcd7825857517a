"""The table of clients, read from clients.toml.

Owns its form; an unknown key is refused. Must not know how a client is installed or run.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

TABLE: Final = Path(__file__).parent / "clients.toml"
_PLACE: Final = re.compile(r"\{(?:bin|url|root|home|prompt|here|place|model)\}")


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Packages at pinned versions that are installed together, and apart from all others."""

    name: str
    kind: Literal["npm", "pypi"]
    packages: tuple[str, ...]
    python: str = "3.11"

    @property
    def pins(self) -> str:
        """What must be the same for an environment to be used again."""
        return " ".join((self.kind, self.python, *self.packages))


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call that the engine writes."""

    name: str
    arguments: dict[str, Any]

    def __post_init__(self) -> None:
        """The engine's script is the same for all homes, so nothing fills a `{home}` here."""
        if _PLACE.search(msgspec.json.encode(self.arguments).decode()):
            raise ValueError(f"a call of {self.name} has a place that nothing fills")


class Client(Environment, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An environment whose client makes one turn; the fields stand in clients.toml."""

    argv: tuple[str, ...] = ()
    before: tuple[tuple[str, ...], ...] = ()
    call: Call | None = None
    last: Call | None = None
    child: tuple[Call, ...] = ()
    environ: dict[str, str] = {}
    files: dict[str, str] = {}
    answer: str = ""
    said: str = "It is done."
    cached: bool = True


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node: str
    environments: tuple[Environment, ...]
    clients: tuple[Client, ...]


@cache
def _table() -> _Table:
    return msgspec.toml.decode(TABLE.read_bytes(), type=_Table)


NODE_VERSION: Final = _table().node


def all_clients() -> tuple[Client, ...]:
    """The clients that have a turn, in the table's order."""
    return _table().clients


def all_environments() -> tuple[Environment, ...]:
    """Everything that is installed."""
    return (*_table().environments, *_table().clients)
