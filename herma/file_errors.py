"""Errors of the files that a command reads and writes, in one line each.

Owns which system errors are about a file, and their wording. Must not know commands.
"""

import errno
import os
import sys
from typing import Final

from herma import EXIT_EXPLAINED

EXIT_FULL: Final = 1
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_OF_FILES: Final = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)
"""The errors of the system that are about a file that someone named, or about its folder."""


def explained_file_error(error: OSError) -> int | None:
    """Print an error of a file that someone named, or of the folder, in one line, and return the
    status; None for any other error.
    """
    if error.errno == errno.ENOENT and error.filename is None:  # from getcwd
        print("herma: the current directory is gone: change to another", file=sys.stderr)
        return EXIT_EXPLAINED
    if error.errno in _OF_FILES and isinstance(error.filename, str):
        print(f"herma: {error.filename}: {error.strerror}", file=sys.stderr)
        return EXIT_EXPLAINED
    if error.errno not in _FULL:
        return None
    place = error.filename or "the output"
    print(f"herma: cannot write {place}: {error.strerror}", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_FULL
