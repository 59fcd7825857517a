"""The file of a worker's starts in the user's state directory, and the judgement of a new start.

Owns the path, the atomic write, and what counts as good. A start that is over 10 % slower than the
last good one serves, but is not kept as good, because it would be the measure of the next. Only the
supervisor writes. Blocks.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from config import state_dir
from housekeeping.process_files import lasting
from housekeeping.state_file import write_atomically
from protocol.errors import ConfigError
from protocol.reading import read_state
from workers.ipc import StartSpeed
from workers.starts.compare import (
    StartDifference,
    differences,
    is_other_model,
    slower_than,
)
from workers.starts.full_hashes import hashes_path
from workers.starts.record import StartRecord, StartRecords, config_file_of

MAX_SHOWN: Final = 8
"""Differences in one line of the log."""
MAX_SHOWN_LETTERS: Final = 200
_ID_CHARS: Final = 16


@dataclass(frozen=True, slots=True)
class StartVerdict:
    """The judgement of a start. `figures` are over 10 % slower; `warnings` are the figures, then
    the changes since the last good start. `changes` describes these changes in words ("" for none),
    `num_changes` counts them. `steps` are the measure of its steps.
    """

    warnings: tuple[str, ...] = ()
    changes: str = ""
    figures: tuple[str, ...] = ()
    num_changes: int = 0
    steps: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not self.figures

    def of_steps(self, figures: tuple[str, ...], path: Path) -> "StartVerdict":
        """The verdict on the same start after its steps have become slower."""
        return replace(self, figures=figures, warnings=_warnings(figures, self.changes, path))


def starts_dir(environ: Mapping[str, str]) -> Path:
    """The folder of all records. Raises `ConfigError` without a home."""
    return state_dir(environ) / "starts"


def record_path(worker: str, environ: Mapping[str, str], file: str = "") -> Path:
    """The file of the starts of a worker of the configuration file `file`: two fleets of one host
    may have workers of one name. Raises `ConfigError` without a home.
    """
    return starts_dir(environ) / _record_name(worker, file)


class RecordedWorker(NamedTuple):
    """A worker with a record, at `path`."""

    worker: str
    path: Path


def recorded_workers(folder: Path) -> list[RecordedWorker]:
    """The workers that have a record in `folder`."""
    paths = [path for path in sorted(folder.glob("*.json")) if ".hashes" not in path.suffixes]
    return [RecordedWorker(_worker_of(path), path) for path in paths]


def record_of(folder: Path, worker: str, file: str) -> Path | None:
    """Where the starts of a worker of `file` are recorded in `folder`; None without a record. Until
    its next start that may be the record by its name alone, of an earlier version.
    """
    paths = (folder / _record_name(worker, file), folder / _record_name(worker, ""))
    return next((path for path in paths if path.is_file()), None)


def claim_record(path: Path, file: str) -> None:
    """Take over the record by the worker's name alone, of an earlier version, if its latest start
    was of `file`. Raises `ConfigError` if it cannot be read.
    """
    old = path.with_name(_record_name(_worker_of(path), ""))
    if path.exists() or old == path:
        return
    starts = load_starts(old)
    latest = starts.latest or starts.last_good
    if latest is not None and config_file_of(latest) == file:
        for before, after in ((hashes_path(old), hashes_path(path)), (old, path)):
            with suppress(OSError):
                before.replace(after)


def _record_name(worker: str, file: str) -> str:
    """The name of the record of `worker` in `file`. "@", which no quoted name contains, separates
    the worker from the file. The file that `herma up` makes of its options at each start has no
    part in the name.
    """
    file = lasting(file)
    of_file = f"@{hashlib.sha256(file.encode()).hexdigest()[:_ID_CHARS]}" if file else ""
    return f"{quote(worker, safe='')}{of_file}.json"


def _worker_of(path: Path) -> str:
    return unquote(path.name.removesuffix(".json").partition("@")[0])


def load_starts(path: Path) -> StartRecords:
    """The record; empty if there is no file. Raises `ConfigError` if it cannot be read."""
    remedy = f"remove {path}, the record of the last good start"
    return read_state(path, StartRecords, remedy) or StartRecords()


def save_starts(path: Path, starts: StartRecords) -> None:
    """Replace the file. Raises `ConfigError`."""
    try:
        write_atomically(path, msgspec.json.encode(starts))
    except OSError as error:
        raise ConfigError(f"this start cannot be recorded: {error}") from error


def judged(
    starts: StartRecords, record: StartRecord, path: Path
) -> tuple[StartRecords, StartVerdict]:
    """The starts with `record`, which proved good, and the verdict on it. It replaces the last good
    start of its model if that was of the same make, so that the kept starts differ. The first good
    start of a model is not measured by the speed of another one.
    """
    last = starts.last_good
    own = [one for one in starts.good if not is_other_model(one, record)]
    if not own:
        found = [] if last is None else _made_otherwise(last, record)
        return starts.with_good(record), StartVerdict((), _in_words(found), (), len(found))
    before = own[-1]
    measures = [before, *(one for one in own if not _made_otherwise(one, record))]
    found = _made_otherwise(before, record)
    slower = tuple(slower_than(_best_speed(measures, record), record.speed))
    changes, steps = _in_words(found), _best_steps(measures)
    verdict = StartVerdict((), changes, slower, len(found), steps)
    if slower:
        return StartRecords(starts.good, record), verdict.of_steps(slower, path)
    if found:
        return starts.with_good(record), verdict
    best = _best_speed([before, record], record)
    kept = msgspec.structs.replace(record, speed=best, steps=before.steps)
    others = tuple(one for one in starts.good if one is not before)
    return StartRecords((*others, kept), record), verdict


def with_steps(starts: StartRecords, steps: Mapping[str, float]) -> StartRecords:
    """The starts, with the step times in ms that the last good start has reached since."""
    last = starts.last_good
    if last is None:
        return starts
    best = {kind: min(ms, last.steps.get(kind, ms)) for kind, ms in steps.items()}
    kept = msgspec.structs.replace(last, steps={**last.steps, **best})
    return StartRecords((*starts.good[:-1], kept), starts.latest)


def _made_otherwise(before: StartRecord, now: StartRecord) -> list[StartDifference]:
    return [one for one in differences(before, now) if one.boundary != "speed"]


def _best_speed(measures: Sequence[StartRecord], record: StartRecord) -> StartSpeed:
    """The best of each figure; prompts count only at the length of `record`'s."""
    speeds = [one.speed for one in measures]
    equal = [one for one in speeds if one.prompt_tokens == record.speed.prompt_tokens]
    return StartSpeed(
        max(one.decode_tokens_per_s for one in speeds),
        max((one.prefill_tokens_per_s for one in equal), default=0.0),
        record.speed.prompt_tokens,
    )


def _best_steps(measures: Sequence[StartRecord]) -> dict[str, float]:
    best: dict[str, float] = {}
    for one in measures:
        for kind, ms in one.steps.items():
            best[kind] = min(ms, best.get(kind, ms))
    return best


def _warnings(figures: tuple[str, ...], changes: str, path: Path) -> tuple[str, ...]:
    if not figures:
        return ()
    changed = f"{changes or 'nothing that is recorded'} (herma diff; remove {path} to accept it)"
    return (*figures, f"changed since the last good start: {changed}")


def _in_words(found: Sequence[StartDifference]) -> str:
    shown = [f"{one.boundary}: {one.what[:MAX_SHOWN_LETTERS]}" for one in found[:MAX_SHOWN]]
    if len(found) > MAX_SHOWN:
        shown.append(f"{len(found) - MAX_SHOWN} more")
    return "; ".join(shown)
