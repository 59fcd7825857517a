"""One installation: a folder of versions, of which one is current.

Owns the layout `NAME/ID/{version.json,env,wheels}`, `NAME/current` and `NAME/previous`, and the
order of writing: a version exists once its record does, and a link changes in one piece. Blocks.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, final
from urllib.parse import quote, unquote

import msgspec

from config import state_dir
from housekeeping.state_file import write_atomically
from protocol.errors import ConfigError
from protocol.reading import read_state

HERMA: Final = "herma"
"""The installation of Herma itself."""

VersionKind = Literal["environment", "image"]

_RECORD: Final = "version.json"
_CURRENT: Final = "current"
_PREVIOUS: Final = "previous"


class InstalledVersion(msgspec.Struct, frozen=True):
    """`reference` is that of an image, "" for an environment. `source` says in words where it came
    from, `made_at` when, in seconds since 1970. `shares` is the environment whose packages this one
    sees too.
    """

    id: str
    kind: VersionKind
    reference: str = ""
    source: str = ""
    made_at: float = 0.0
    shares: str = ""


@final
class Installation:
    """The installation in `folder`, which need not exist yet."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder

    def place(self, version_id: str) -> Path:
        """The folder of a version."""
        return self.folder / quote(version_id, safe="")

    def environment(self, version_id: str) -> Path:
        """The environment of a version, with all links followed: what runs there must not move when
        a link does.
        """
        return (self.place(version_id) / "env").resolve()

    def program_instead_of(self, prefix: Path) -> Path | None:
        """Herma's program of the current version, if the environment `prefix` is of another one."""
        current = self.current_environment.resolve()
        is_other = current != prefix.resolve() and self._is_linked(_CURRENT)
        return current / "bin" / "herma" if is_other and self.has_environment(prefix) else None

    @property
    def current_environment(self) -> Path:
        """The path that is always the current version's environment."""
        return self.folder / _CURRENT / "env"

    def has_environment(self, prefix: Path) -> bool:
        """Whether `prefix` is the environment of a version."""
        return prefix.resolve() in (place.resolve() for place in self.folder.glob("*/env"))

    def version(self, version_id: str) -> InstalledVersion | None:
        """The record of a version; None if there is none. Raises `ConfigError` if it is broken."""
        path = self.place(version_id) / _RECORD
        return read_state(path, InstalledVersion, "install it again")

    def versions(self) -> Iterator[InstalledVersion]:
        """All complete versions, the oldest first."""
        places = [path.parent for path in self.folder.glob(f"*/{_RECORD}")]
        found = [self.version(unquote(one.name)) for one in places if not one.is_symlink()]
        whole = (version for version in found if version is not None)
        yield from sorted(whole, key=lambda version: version.made_at)

    def add(self, version: InstalledVersion) -> None:
        """Record a version whose files are there: from now on it exists. Raises `ConfigError`."""
        try:
            write_atomically(self.place(version.id) / _RECORD, msgspec.json.encode(version))
        except OSError as error:
            raise ConfigError(f"{self.place(version.id)} cannot be written: {error}") from error

    def remove(self, version_id: str) -> None:
        """Remove a version, its record first."""
        (self.place(version_id) / _RECORD).unlink(missing_ok=True)
        shutil.rmtree(self.place(version_id), ignore_errors=True)

    def current(self) -> InstalledVersion | None:
        """The current version; None if there is none yet."""
        return self._linked(_CURRENT)

    def previous(self) -> InstalledVersion | None:
        """The version that was current before."""
        return self._linked(_PREVIOUS)

    def switch(self, version_id: str, previous: str) -> None:
        """Make a version the current one, and `previous` the one before it; "": have none. Raises
        `ConfigError`.
        """
        if version_id and self.version(version_id) is None:
            raise ConfigError(f"installation `{self.name}` has no version {version_id}")
        try:
            self._link(_PREVIOUS, previous)
            self._link(_CURRENT, version_id)
        except OSError as error:
            raise ConfigError(f"{self.folder}: the link cannot be changed: {error}") from error

    def _linked(self, name: str) -> InstalledVersion | None:
        target = self._target(name)
        return None if target is None else self.version(unquote(target))

    def _target(self, name: str) -> str | None:
        try:
            return str((self.folder / name).readlink())
        except FileNotFoundError:
            return None

    def _is_linked(self, name: str) -> bool:
        return self._target(name) is not None

    def _link(self, name: str, version_id: str) -> None:
        if not version_id:
            (self.folder / name).unlink(missing_ok=True)
            return
        new = self.folder / f"{name}.{os.getpid()}.new"
        new.unlink(missing_ok=True)
        new.symlink_to(self.place(version_id).name)
        new.replace(self.folder / name)


def versions_dir(environ: Mapping[str, str]) -> Path:
    """The folder of all installations. Raises `ConfigError` without a home."""
    return state_dir(environ) / "versions"


def installation_of(name: str, environ: Mapping[str, str]) -> Installation:
    """The installation of that name. Raises `ConfigError` without a home."""
    return Installation(name, versions_dir(environ) / quote(name, safe=""))
