"""The file in which what speculation has learned outlives the engine, and what is said of it.

Owns the path, the format, when it is written and when a drafter is called bad. Must not know what
was learned. Blocks for a fraction of a millisecond. A file is for one model, drafter and device;
of two workers that share it the later one's is kept.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal, final

import msgspec

from config import state_dir
from protocol.errors import ConfigError
from protocol.state_file import write_atomically
from workers.speculation import Fit, Speculation

FORMAT: Final = 1
KEEP_EVERY_S: Final = 60.0
"""How often an engine writes at the most, when it has nothing to do."""


class Origin(msgspec.Struct, frozen=True):
    """What the fit is of; `device` with its number format."""

    model: str
    drafter: str
    device: str


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal[1] = FORMAT
    origin: Origin
    fit: Fit


class _Head(msgspec.Struct, frozen=True):
    format: int


def record_path(origin: Origin, environ: Mapping[str, str]) -> Path:
    """Raises `ConfigError` without a home."""
    text = "\0".join((origin.model, origin.drafter, origin.device))
    digest = hashlib.blake2s(text.encode(), digest_size=8).hexdigest()
    name = "".join([c if c.isalnum() or c in "-_." else "-" for c in Path(origin.model).name])
    return state_dir(environ) / "drafts" / f"{name[:60]}-{digest}.json"


def load_fit(path: Path) -> Fit | None:
    """What the file holds; None for none. Raises `ConfigError`, one line, if it cannot be used."""
    try:
        content = path.read_bytes()
        found = msgspec.json.decode(content, type=_Head).format
        if found != FORMAT:
            raise ConfigError(f"what drafts brought is in format {found} in {path}, not {FORMAT}")
        return msgspec.json.decode(content, type=_Record).fit
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"what drafts brought cannot be read from {path}: {error}") from error


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@final
class DraftRecord:
    """Keeps the fit of one engine in the file `path`; None: nowhere. Whatever fails is said once,
    and the engine goes on.
    """

    def __init__(
        self,
        origin: Origin,
        environ: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = _say,
    ) -> None:
        self._origin = origin
        self._clock = clock
        self._say = say
        self._kept_at = clock()
        self._kept: Fit | None = None
        self._warned = ""
        self._speculation: Speculation | None = None
        self._path: Path | None = None
        try:
            self._path = record_path(origin, environ)
        except ConfigError as error:
            say(f"what drafts bring is not kept: {error}")

    def load(self) -> Fit | None:
        """What an earlier engine has learned. A file that cannot be used is replaced later."""
        if self._path is None:
            return None
        try:
            self._kept = load_fit(self._path)
        except ConfigError as error:
            self._say(f"{error}; learning anew")
        return self._kept

    def follow(self, speculation: Speculation) -> None:
        """Keep what this one learns."""
        self._speculation = speculation

    def report(self, is_busy: bool) -> str:
        """What to warn of, for the status; said in the log once. In idle times the fit is kept."""
        if self._speculation is None:
            return ""
        if not is_busy and self._clock() - self._kept_at >= KEEP_EVERY_S:
            self.keep()
        warning = self._speculation.warning()
        if warning and not self._warned:
            self._say(f"{self._origin.drafter}: {warning}")
            self._warned = warning
        return warning

    def keep(self) -> None:
        """Write the file, if there is anything new."""
        self._kept_at = self._clock()
        if self._path is None or self._speculation is None:
            return
        fit = self._speculation.fit()
        if fit == self._kept:
            return
        try:
            content = msgspec.json.encode(_Record(origin=self._origin, fit=fit))
            write_atomically(self._path, content)
        except OSError as error:
            self._say(f"what drafts brought cannot be kept: {error}")
            self._path = None
        else:
            self._kept = fit
