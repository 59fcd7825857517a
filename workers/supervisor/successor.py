"""Replaces this process's program by another version's: the same process id, options and parent.

Owns the arguments and the environment of the replacement, on both sides. A process manager sees no
change. A version that cannot run at all ends the process that its parent watches; the parent then
starts what it always starts, the version from before. Must not know engines or gateways.
"""

import os
import signal
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from housekeeping.own_code import CODE_VARIABLES, HELD, own_entry
from protocol.errors import ConfigError


class HeldStart(msgspec.Struct, frozen=True):
    """The start of a process that replaced another: it begins held for `lease_s`; `back` is the
    program that serves if the new one is not accepted in that time.
    """

    lease_s: float
    back: tuple[str, ...]

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> "HeldStart | None":
        """Read the held start from `environ` and remove its variable, so that children are not
        held.
        """
        text = environ.pop(HELD, None)
        return None if text is None else msgspec.json.decode(text, type=cls)


@dataclass(frozen=True, slots=True)
class Successor:
    """The program that this process becomes."""

    argv: tuple[str, ...]
    environ: dict[str, str]

    def become(self) -> NoReturn:
        """Run the program in this process. Raises `OSError`."""
        for number in (signal.SIGINT, signal.SIGTERM):
            # Ignored signals stay ignored in the new program.
            signal.signal(number, signal.SIG_DFL)
        os.execve(self.argv[0], self.argv, self.environ)  # noqa: S606


def successor_of(
    entry: Sequence[str],
    environ: Mapping[str, str],
    lease_s: float = 0.0,
) -> Successor:
    """The program `entry` with the options of this process, held for `lease_s`. Raises
    `ConfigError` if there is no such program.
    """
    own, words = own_entry()
    if not os.access(entry[0], os.X_OK):
        raise ConfigError(f"{entry[0]} is no program of this host")
    changed = {name: value for name, value in environ.items() if name not in CODE_VARIABLES}
    if lease_s:
        changed[HELD] = msgspec.json.encode(HeldStart(lease_s, own)).decode()
    return Successor((*entry, *words), changed)
