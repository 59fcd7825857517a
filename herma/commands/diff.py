"""`herma diff [WORKER]`: the changes since the last good start of this host's workers.

Owns the report and the exit status. Must not know how a fact is read.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from config import Config, load_config
from herma.doctor import Change, Host, folder_of, recorded, since_last_good, this_host
from protocol.errors import ConfigError
from workers.starts import RecordedWorker, config_file_of, deep_differences, hashes_path

EXIT_DIFFERS: Final = 1


def run(arguments: argparse.Namespace) -> int:
    """Print the changes. Returns 1 if there is one, else 0. Raises `ConfigError`."""
    host = this_host(arguments.config)
    config = load_config(arguments.config) if arguments.config is not None else Config()
    changes = [
        _change(host, one, config, arguments) for one in _chosen(host, arguments.worker, config)
    ]
    if arguments.json:
        content = msgspec.json.encode([_fields(one) for one in changes])
        sys.stdout.write(content.decode() + "\n")
    else:
        names = Counter(one.worker for one in changes)
        print(
            "\n".join(
                line for one in changes for line in report(one, with_file=names[one.worker] > 1)
            )
        )
    return EXIT_DIFFERS if any(one.differences for one in changes) else 0


def _chosen(host: Host, worker: str | None, config: Config) -> Sequence[RecordedWorker]:
    """The workers to compare: several of one name if several files of this host have one. Raises
    `ConfigError` if no start is recorded.
    """
    known = recorded(host, config)
    found = [one for one in known if worker in (None, one.worker)]
    if worker is not None and not found:
        has = ", ".join(sorted({one.worker for one in known})) or "none"
        raise ConfigError(f"no start of worker `{worker}` is recorded; there are records of {has}")
    if not found:
        raise ConfigError("no start of a worker is recorded for this user; start one first")
    return found


def _change(
    host: Host, one: RecordedWorker, config: Config, arguments: argparse.Namespace
) -> Change:
    change = since_last_good(host, one, config.worker(one.worker), before=arguments.before)
    if change is None:
        which = "only one of its starts has" if arguments.before else "none of its starts has"
        raise ConfigError(f"worker `{one.worker}`: {which} proved good")
    if not arguments.deep:
        return change
    path = hashes_path(one.path)
    deep = deep_differences(path, change.good, change.now, folder_of(host, change))
    return msgspec.structs.replace(change, differences=(*change.differences, *deep))


def report(change: Change, *, with_file: bool = False) -> Iterator[str]:
    """One line for each difference, grouped by boundary. `with_file`: others have its name."""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(change.good.at))
    count = len(change.differences)
    found = "nothing has changed" if not count else f"{count} change{'s' * (count != 1)}"
    of_file = f" of {config_file_of(change.good)}" if with_file else ""
    yield f"{change.worker}{of_file}: {found} since the good start of {when}"
    boundary = ""
    for one in change.differences:
        yield f"  {one.boundary if one.boundary != boundary else '':<12} {one.what}"
        boundary = one.boundary


def _fields(change: Change) -> dict[str, Any]:
    return {
        "worker": change.worker,
        "file": config_file_of(change.good),
        "good_at": change.good.at,
        "differences": change.differences,
    }
