"""`herma cache clear [NAME]`: forget cached prefixes.

Owns the requests to this host's supervisors. Must not know what an engine keeps where.
"""

import argparse

from herma.processes import ask, supervisors
from protocol.control_messages import AskClear, Done, Refused
from protocol.errors import ConfigError


def run(arguments: argparse.Namespace) -> int:
    """Clear the caches of the workers of this host, or of one. Returns 1 if one of several refuses,
    as engines that are not Herma's do. Raises `HermaError`.
    """
    if arguments.action != "clear":
        raise ConfigError("say what to do with the cache: `herma cache clear`")
    name: str | None = arguments.worker
    known = [each for each in supervisors() if each.status is not None]
    found = [each for each in known if name in (None, each.status and each.status.name)]
    if not found:
        which = "no worker runs on this host" if name is None else f"no worker is named `{name}`"
        raise ConfigError(f"{which} (as this user): `herma status` shows those that run")
    status = 0
    for each in found:
        own = each.status.name if each.status is not None else str(each.pid)
        match ask(each.path, AskClear()):
            case Done():
                print(f"{own}: its cached prefixes are forgotten")
            case Refused(reason=reason):
                if name is not None:
                    raise ConfigError(f"worker `{own}`: {reason}")
                print(f"{own}: {reason}")
                status = 1
            case _:
                raise ConfigError(f"worker `{own}` sent an unexpected answer: is it older?")
    return status
