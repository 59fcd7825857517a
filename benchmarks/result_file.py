"""The files that a long run writes at its end.

Owns their places, which are checked before the run begins: after an hour of measuring it is too
late to say that a file cannot be written. Must not know what is written.
"""

import argparse
import os
from pathlib import Path


def result_file(text: str) -> Path:
    """The file that an option names, for `argparse`; its directory is made where there is none.
    Raises `argparse.ArgumentTypeError` if the file cannot be written.
    """
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a directory; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        said = f"{path.parent} cannot be made ({error.strerror}); name another file"
        raise argparse.ArgumentTypeError(said) from error
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written; name another file")
    return path
