"""The file of a worker's starts in the user's state directory, and the judgement of a new one.

Owns the path, the writing in one piece, and what counts as good: a start that is over 10 % slower
than the last good one serves as before, but would be the measure of the next, so it is not kept as
good. The supervisor is the one writer. Blocks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from config import state_dir
from protocol.errors import ConfigError
from protocol.state_file import write_atomically
from workers.starts.compare import Difference, differences, slower_than
from workers.starts.record import StartRecord, Starts

MAX_SHOWN: Final = 8
"""Differences in one line of the log."""
MAX_SHOWN_LETTERS: Final = 200


@dataclass(frozen=True, slots=True)
class Verdict:
    """`warnings`: each figure that is over 10 % slower, and at the end what has changed. `changes`:
    how a start that is good differs from the one before; empty for none.
    """

    warnings: tuple[str, ...] = ()
    changes: str = ""


def starts_dir(environ: Mapping[str, str]) -> Path:
    """The folder of all records. Raises `ConfigError` without a home."""
    return state_dir(environ) / "starts"


def record_path(worker: str, environ: Mapping[str, str]) -> Path:
    """Where the starts of a worker are kept. Raises `ConfigError` without a home."""
    return starts_dir(environ) / f"{quote(worker, safe='')}.json"


def recorded_workers(folder: Path) -> list[str]:
    """The names of the workers that have a record in `folder`."""
    names = (path.name for path in sorted(folder.glob("*.json")))
    return [
        unquote(name.removesuffix(".json")) for name in names if not name.endswith(".hashes.json")
    ]


def load_starts(path: Path) -> Starts:
    """The record; empty if there is none. Raises `ConfigError` if it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Starts)
    except FileNotFoundError:
        return Starts()
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"the record of the last good start cannot be read: {error}; remove {path}"
        ) from error


def save_starts(path: Path, starts: Starts) -> None:
    """Replace the file. Raises `ConfigError`."""
    try:
        write_atomically(path, msgspec.json.encode(starts))
    except OSError as error:
        raise ConfigError(f"this start cannot be recorded: {error}") from error


def judged(starts: Starts, record: StartRecord, path: Path) -> tuple[Starts, Verdict]:
    """The starts with one that proved good, and what is said of it. A start like the last good one
    takes its place, so that the kept ones differ.
    """
    before = starts.last_good
    if before is None:
        return starts.with_good(record), Verdict()
    found = differences(before, record)
    slower = tuple(slower_than(before.speed, record.speed))
    if slower:
        accept = f" (herma diff; remove {path} to accept it)"
        changed = f"{_in_words(found) or 'nothing that is recorded'}{accept}"
        warnings = (*slower, f"changed since the last good start: {changed}")
        return Starts(starts.good, record), Verdict(warnings)
    if not found:
        starts = Starts(starts.good[:-1])
    changed = _in_words(found)
    return starts.with_good(record), Verdict(changes=changed)


def _in_words(found: Sequence[Difference]) -> str:
    shown = [f"{one.boundary}: {one.what[:MAX_SHOWN_LETTERS]}" for one in found[:MAX_SHOWN]]
    if len(found) > MAX_SHOWN:
        shown.append(f"{len(found) - MAX_SHOWN} more")
    return "; ".join(shown)
