"""The file that keeps what speculation has learned from one engine to the next.

Owns the path, the format, the times of writing, and the warning about a bad drafter. Must not know
what was learned. A write blocks for a fraction of a millisecond. A file is for one model, drafter
and device; if two workers share it, the later write wins.
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
from housekeeping.state_file import write_atomically
from protocol.errors import ConfigError
from protocol.reading import FAULTS
from workers.speculation import Fit, Speculation

FORMAT: Final = 1
KEEP_EVERY_S: Final = 60.0
"""The shortest time between two writes, which an engine makes when it is idle."""


class FitOrigin(msgspec.Struct, frozen=True):
    """What a fit was learned from; `device` includes the number formats."""

    model: str
    drafter: str
    device: str


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    format: Literal[1] = FORMAT
    origin: FitOrigin
    fit: Fit


class _Head(msgspec.Struct, frozen=True):
    format: int


def record_path(origin: FitOrigin, environ: Mapping[str, str]) -> Path:
    """The file for `origin` in the state directory. Raises `ConfigError` without a home."""
    text = "\0".join((origin.model, origin.drafter, origin.device))
    digest = hashlib.blake2s(text.encode(), digest_size=8).hexdigest()
    name = "".join([c if c.isalnum() or c in "-_." else "-" for c in Path(origin.model).name])
    return state_dir(environ) / "drafts" / f"{name[:60]}-{digest}.json"


def load_fit(path: Path) -> Fit | None:
    """The fit in the file, None if there is no file. Raises `ConfigError`, one line, if the file
    cannot be used.
    """
    try:
        content = path.read_bytes()
        found = msgspec.json.decode(content, type=_Head).format
        if found != FORMAT:
            raise ConfigError(f"what drafts brought is in format {found} in {path}, not {FORMAT}")
        return msgspec.json.decode(content, type=_Record).fit
    except FileNotFoundError:
        return None
    except (OSError, *FAULTS) as error:
        raise ConfigError(f"what drafts brought cannot be read from {path}: {error}") from error


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@final
class DraftRecord:
    """Keeps the fit of one engine in a file. If that fails, the log says so once and the engine
    goes on without.
    """

    def __init__(
        self,
        origin: FitOrigin,
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
        """The fit that an earlier engine has learned. An unusable file is replaced at the next
        write.
        """
        if self._path is None:
            return None
        try:
            self._kept = load_fit(self._path)
        except ConfigError as error:
            self._say(f"{error}; learning anew")
        return self._kept

    def follow(self, speculation: Speculation) -> None:
        """Write what `speculation` learns from now on."""
        self._speculation = speculation

    def report(self, is_busy: bool) -> str:
        """The warning for the worker's status, or ""; the log gets it once. Also writes the fit if
        the engine is idle and a write is due.
        """
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
