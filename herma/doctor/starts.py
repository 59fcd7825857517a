"""The changes since the last good start of each worker.

Owns the sources of the present facts: the host, the configuration file, and the command and
environment of the worker's latest start, good or not. Must not judge a change.
"""

import shlex
from collections.abc import Iterator
from contextlib import chdir, nullcontext
from pathlib import Path
from typing import Final

import msgspec

from config import Config, WorkerConfig
from herma.doctor.finding import Finding
from herma.doctor.host import Host
from protocol.errors import ConfigError
from workers.starts import (
    MachineOrigin,
    RecordedWorker,
    StartDifference,
    StartRecord,
    StartRecords,
    differences,
    gather,
    load_starts,
    model_folder,
    record_of,
    recorded_workers,
    starts_dir,
    this_origin,
)

_SETTINGS: Final = ("environment", "arguments", "config")


class Change(msgspec.Struct, frozen=True):
    """The differences `now` from the start `good` of `worker`, whose record is at `path`. `unread`
    says why its configuration cannot be read, if so; that is one of the differences.
    """

    worker: str
    good: StartRecord
    now: StartRecord
    differences: tuple[StartDifference, ...]
    unread: str = ""
    path: Path = Path()


def check_starts(host: Host, config: Config) -> Iterator[Finding]:
    """Report preloaded libraries and settings that have changed since the last good start."""
    try:
        known = recorded(host, config)
    except ConfigError:
        return  # without a home there are no records
    for one in known:
        try:
            change = since_last_good(host, one, config.worker(one.worker))
        except ConfigError as error:
            what, why = f"worker `{one.worker}`: {error}", "its starts cannot be compared"
            yield Finding("warning", "settings", what, why, "correct or remove the file")
            continue
        if change is not None:
            yield from _libraries(change)
            yield from _settings(change)
            if change.unread:
                yield _unread(change)


def recorded(host: Host, config: Config) -> list[RecordedWorker]:
    """The workers of `config`, if it names any, else of this host, whose starts are recorded.
    Raises `ConfigError` without a home.
    """
    folder = host.path(starts_dir(host.environ))
    if not config.workers:
        return recorded_workers(folder)
    found = [(one.name, record_of(folder, one.name, host.config_file)) for one in config.workers]
    return [RecordedWorker(name, path) for name, path in found if path is not None]


def since_last_good(
    host: Host, recorded: RecordedWorker, config: WorkerConfig | None, *, before: bool = False
) -> Change | None:
    """The changes since the last good start, or with `before` since the good start before that one;
    None if there is no such start. `config` None means the configuration that the latest start's
    command names. Raises `ConfigError`.
    """
    starts = load_starts(recorded.path)
    good = starts.good[-2:-1] if before else starts.good[-1:]
    if not good:
        return None
    now, unread = _now(host, starts, config)
    found = differences(good[0], now)
    if unread:
        found.insert(0, StartDifference("config", unread))
    return Change(recorded.worker, good[0], now, tuple(found), unread, recorded.path)


def _now(host: Host, starts: StartRecords, config: WorkerConfig | None) -> tuple[StartRecord, str]:
    """The record that a start would have now, and the reason if its configuration cannot be
    read.
    """
    base = starts.latest or starts.good[-1]
    unread = ""
    if config is None:
        try:
            config = _reread(base)
        except (ConfigError, OSError) as error:
            unread = f"it cannot be read: {error}"
    model_dir = base.model_dir or starts.good[-1].model_dir
    if config is not None and config.model != base.config.get("model"):
        model_dir = model_folder(config.model)
    found = gather(
        MachineOrigin(host.root, host.packages, this_origin().source),
        config,
        arguments=base.arguments,
        environ=base.environment,
        model_dir=model_dir,
        at=base.at,
        folder=base.folder,
    )
    if config is None:
        found = msgspec.structs.replace(
            found, config=starts.good[-1].config, config_hash=starts.good[-1].config_hash
        )
    now = msgspec.structs.replace(
        found, image=base.image, engine_version=base.engine_version, speed=base.speed
    )
    return now, unread


def _reread(base: StartRecord) -> WorkerConfig:
    """The worker's configuration, read again as its command says. Raises `ConfigError`."""
    from workers.__main__ import parse, read_worker

    with chdir(base.folder) if base.folder else nullcontext():
        return read_worker(parse(list(base.arguments)))


def _libraries(change: Change) -> Iterator[Finding]:
    for one in change.differences:
        if one.boundary == "libraries":
            yield Finding(
                "warning",
                "preload",
                f"since the last good start of worker `{change.worker}`: {one.what}",
                "it stands between programs and the driver; a running engine keeps the old copy",
                "put the earlier file back, or restart the worker and see that its start is good",
            )


def _settings(change: Change) -> Iterator[Finding]:
    drifted = [
        one.what
        for one in change.differences
        if one.boundary in _SETTINGS and one.what != change.unread
    ]
    if drifted:
        yield Finding(
            "warning",
            "settings",
            f"worker `{change.worker}` has drifted from its last good start: {'; '.join(drifted)}",
            "a start with other settings may be slower or fail, and seldom says so",
            f"herma diff {change.worker}; set them back, or start it: a good start keeps them",
        )


def _unread(change: Change) -> Finding:
    """The worker's configuration file is gone or broken, or the worker is no longer in it."""
    name = change.worker
    return Finding(
        "warning",
        "settings",
        f"the configuration of worker `{name}`'s latest start: {change.unread}",
        "what a start would change cannot be told; a worker that is no more leaves its record",
        f"put the file back or correct it, or start `{name}` from another one; if there is no such "
        f"worker any more: rm {shlex.quote(str(change.path))}",
    )


def folder_of(host: Host, change: Change) -> Path:
    """The directory of the model's files."""
    return host.path(change.now.model_dir)
