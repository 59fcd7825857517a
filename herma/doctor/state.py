"""Checks the state directory, in which Herma keeps what outlives its processes.

Owns the verdict on whether it can be written, and whether its disk has room. Must not write there.
"""

import os
from collections.abc import Iterator
from typing import Final

from config import state_dir
from herma.doctor.finding import Finding
from herma.doctor.host import Host
from protocol.errors import ConfigError

CHECK: Final = "state"

_MIN_FREE: Final = 64 * 2**20
"""The least free bytes of the disk without a finding. A ledger and stored responses grow by
some kilobytes a request.
"""
_MIB: Final = 2**20


def check_state(host: Host) -> Iterator[Finding]:
    """Check that the state directory can be written. Without a home nothing is kept, which the
    gateway says at its start.
    """
    try:
        folder = state_dir(host.environ).absolute()
    except ConfigError:
        return
    above = next(one for one in (folder, *folder.parents) if host.exists(one) or one.parent == one)
    place = host.path(above)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        yield Finding(
            "error",
            CHECK,
            f"{folder} cannot be written" + (f": {above} is a file" if place.is_file() else ""),
            "workers of this host cannot dial in at its socket, and no usage is recorded",
            "give this user the folder, or name another in XDG_STATE_HOME",
        )
    elif (free := host.free_bytes(place)) < _MIN_FREE:
        yield Finding(
            "warning",
            CHECK,
            f"the disk of {folder} has {free / _MIB:.0f} MiB free",
            "on a full disk no usage and no response is recorded, and a request whose cost is "
            "limited is refused",
            "free space there, or name another folder in XDG_STATE_HOME",
        )
