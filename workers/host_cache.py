"""The descriptor of the host's memory for prefixes, on its way from supervisor to engine.

Owns the name of its variable and the check of what it names. Must not know who made the region, nor
what lies there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

FD_VARIABLE: Final = "HERMA_CACHE_FD"
REGION_NAME: Final = "herma-cache"


def taken_fd(environ: Mapping[str, str]) -> int | None:
    """The descriptor that the environment names; None if it names none of a region. A process that
    inherits the variable and not the descriptor has another file there, or none.
    """
    text = environ.get(FD_VARIABLE, "")
    if not text.isdecimal():
        return None
    try:
        target = (Path("/proc/self/fd") / text).readlink()
    except OSError:
        return None
    return int(text) if str(target).startswith(f"/memfd:{REGION_NAME}") else None
