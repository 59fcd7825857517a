"""Copies what a Python process of the tests writes to a file, for `tests/secrets_in_logs.py`.

Python imports a module of this name at its start; the net puts this folder on the children's path.
`herma keys` is left out: it shows a secret on purpose, once.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

FOLDER = os.environ.get("HERMA_COPIED_OUTPUT")


class Copied:
    """A stream, and the file that gets the same."""

    def __init__(self, stream: TextIO, copy: TextIO) -> None:
        self._stream = stream
        self._copy = copy

    def write(self, text: str) -> int:
        self._copy.write(text)
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


if FOLDER and sys.stdout is not None and sys.stderr is not None and "keys" not in sys.orig_argv:
    with suppress(OSError):  # the tests are over
        _path = Path(FOLDER) / f"{os.getpid()}.log"
        _copy = _path.open("a", buffering=1, encoding="utf-8")
        sys.stdout = Copied(sys.stdout, _copy)  # type: ignore[assignment]
        sys.stderr = Copied(sys.stderr, _copy)  # type: ignore[assignment]
