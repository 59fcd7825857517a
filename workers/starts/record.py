"""The record of one start, and the bounded list of good starts.

Owns the fields and the bound. Reads no files.
"""

from pathlib import Path
from typing import Any, Final

import msgspec

from workers.ipc import StartSpeed

MAX_GOOD: Final = 5
"""Records of good starts that are kept per worker, the last one at the end."""


HEADER_BYTES: Final = 64 * 1024
"""How much of a file that has no safetensors header counts as its header."""


class WeightFile(msgspec.Struct, frozen=True):
    """A file of the model. `header` is a hash of its safetensors header, or of the first 64 KiB of
    another file; `mtime_ns` is its time of modification.
    """

    num_bytes: int
    mtime_ns: int
    header: str


class Library(msgspec.Struct, frozen=True):
    """A library that is preloaded into every process; a missing one has 0 bytes and no hash."""

    num_bytes: int
    sha256: str


class StartRecord(msgspec.Struct, frozen=True):
    """The facts of one start; unknown facts are empty. `at` is in seconds since 1970. `versions`
    are of Herma, Python and packages, `commit` is of a git checkout, `image` is the digest of the
    container's image. `environment` has the variables of an allow list, `arguments` the worker's
    command, `folder` the directory where it was given, `config` the worker's effective table
    without secrets.

    `speed` and `steps` (ms by kind of work, `SpeedWatch`) of a good start are the best that starts
    of the same make have reached: otherwise each start could be a little slower than the one
    before.
    """

    at: float
    versions: dict[str, str] = {}
    engine_version: str = ""
    commit: str = ""
    image: str = ""
    driver: str = ""
    kernel: str = ""
    environment: dict[str, str] = {}
    arguments: tuple[str, ...] = ()
    folder: str = ""
    config: dict[str, Any] = {}
    config_hash: str = ""
    model_dir: str = ""
    weights: dict[str, WeightFile] = {}
    libraries: dict[str, Library] = {}
    speed: StartSpeed = StartSpeed()
    steps: dict[str, float] = {}


def config_file_of(record: StartRecord) -> str:
    """The absolute path of the configuration file that the command of the start names; "" for
    none.
    """
    words = record.arguments
    if "--config" not in words[:-1]:
        return ""
    return str(Path(record.folder) / words[words.index("--config") + 1])


class StartRecords(msgspec.Struct, frozen=True):
    """The file of one worker: its good starts, and its latest start, good or not."""

    good: tuple[StartRecord, ...] = ()
    latest: StartRecord | None = None

    @property
    def last_good(self) -> StartRecord | None:
        return self.good[-1] if self.good else None

    def with_good(self, record: StartRecord) -> "StartRecords":
        """The starts with one more good start, which is also the latest one."""
        return StartRecords((*self.good, record)[-MAX_GOOD:], record)
