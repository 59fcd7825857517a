"""`herma cache clear [NAME]`: forget cached prefixes.

Owns the requests to this host's supervisors. Must not know what an engine keeps where.
"""

import argparse
from pathlib import Path

from herma.processes import Supervisor, ask, only_worker, runs, supervisors, whose
from protocol.control_messages import AskClear, Done, Refused
from protocol.errors import ConfigError


def run(arguments: argparse.Namespace) -> int:
    """Clear the caches of the workers of the file, of all of this user, or of one. Returns 1 if one
    of several refuses, as engines that are not Herma's do. Raises `HermaError`.
    """
    if arguments.action != "clear":
        raise ConfigError("say what to do with the cache: `herma cache clear`")
    found = _chosen(arguments.worker, None if arguments.all else arguments.config)
    status = 0
    for each in found:
        own = each.status.name if each.status is not None else str(each.pid)
        match ask(each.path, AskClear()):
            case Done():
                print(f"{own}: its cached prefixes are forgotten ({whose(each.status)})")
            case Refused(reason=reason):
                if arguments.worker is not None:
                    raise ConfigError(f"worker `{own}`: {reason}")
                print(f"{own}: {reason}")
                status = 1
            case _:
                raise ConfigError(f"worker `{own}` sent an unexpected answer: is it older?")
    return status


def _chosen(name: str | None, file: Path | None) -> list[Supervisor]:
    """The workers to clear. Raises `ConfigError` if there is none."""
    if name is not None:
        return [only_worker(name, None, file)]
    known = [each for each in supervisors() if each.status is not None]
    found = [each for each in known if file is None or runs(file, each.status)]
    if known and not found:
        raise ConfigError(f"no worker of {file} runs here; --all clears those of other files")
    if not found:
        raise ConfigError("no worker runs on this host (as this user)")
    return found
