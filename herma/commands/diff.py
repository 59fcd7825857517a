"""`herma diff [WORKER]`: the changes since the last good start of this host's workers.

Owns the report and the exit status. Must not know how a fact is read.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from config import Config, load_config
from herma.doctor import Change, Host, folder_of, recorded_names, since_last_good, this_host
from protocol.errors import ConfigError
from workers.starts import deep_differences, hashes_path, record_path

EXIT_DIFFERS: Final = 1


def run(arguments: argparse.Namespace) -> int:
    """Print the changes. Returns 1 if there is one, else 0. Raises `ConfigError`."""
    host = this_host()
    config = load_config(arguments.config) if arguments.config is not None else Config()
    changes = [
        _change(host, name, config, arguments) for name in _names(host, arguments.worker, config)
    ]
    if arguments.json:
        content = msgspec.json.encode([_fields(one) for one in changes])
        sys.stdout.write(content.decode() + "\n")
    else:
        print("\n".join(line for one in changes for line in report(one)))
    return EXIT_DIFFERS if any(one.differences for one in changes) else 0


def _names(host: Host, worker: str | None, config: Config) -> Sequence[str]:
    """The workers to compare. Raises `ConfigError` if no start is recorded."""
    known = recorded_names(host)
    if worker is not None and worker not in known:
        has = ", ".join(known) or "none"
        raise ConfigError(f"no start of worker `{worker}` is recorded; there are records of {has}")
    names = known if worker is None else [worker]
    if config.workers:
        names = [name for name in names if config.worker(name) is not None]
    if not names:
        raise ConfigError("no start of a worker is recorded for this user; start one first")
    return names


def _change(host: Host, name: str, config: Config, arguments: argparse.Namespace) -> Change:
    change = since_last_good(host, name, config.worker(name), before=arguments.before)
    if change is None:
        which = "only one of its starts has" if arguments.before else "none of its starts has"
        raise ConfigError(f"worker `{name}`: {which} proved good")
    if not arguments.deep:
        return change
    path = hashes_path(record_path(name, host.environ))
    deep = deep_differences(path, change.good, change.now, folder_of(host, change))
    return msgspec.structs.replace(change, differences=(*change.differences, *deep))


def report(change: Change) -> Iterator[str]:
    """One line for each difference, grouped by boundary."""
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(change.good.at))
    count = len(change.differences)
    found = "nothing has changed" if not count else f"{count} change{'s' * (count != 1)}"
    yield f"{change.worker}: {found} since the good start of {when}"
    boundary = ""
    for one in change.differences:
        yield f"  {one.boundary if one.boundary != boundary else '':<12} {one.what}"
        boundary = one.boundary


def _fields(change: Change) -> dict[str, Any]:
    return {
        "worker": change.worker,
        "good_at": change.good.at,
        "differences": change.differences,
    }
