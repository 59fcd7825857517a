"""The record of one start, and the bounded list of those that proved good.

Owns the fields and the bound. Must not read anything.
"""

from typing import Any, Final

import msgspec

from workers.ipc import StartSpeed

MAX_GOOD: Final = 5
"""Records of good starts that are kept per worker, the last one at the end."""


class WeightFile(msgspec.Struct, frozen=True):
    """A file of the model. `header` is a hash of its safetensors header, of other files of their
    first 64 KiB; `mtime_ns` is its time of modification.
    """

    num_bytes: int
    mtime_ns: int
    header: str


class Library(msgspec.Struct, frozen=True):
    """A library that is preloaded into every process; one that is gone has 0 bytes and no hash."""

    num_bytes: int
    sha256: str


class StartRecord(msgspec.Struct, frozen=True):
    """One start. `at` is in seconds since 1970. `versions` are those of Herma, Python and packages;
    `commit` that of a git checkout, `image` the digest of the container's image, as far as known.
    `environment` has an allow list of variables, `arguments` the words of the worker's command and
    `folder` the directory that they were said in,
    `config` its effective table without secrets. Facts that are not known are empty. `speed` and
    `steps` (ms by kind of work, `SpeedWatch`) of a good start are the best that starts of the same
    make have reached: each may be a little slower than the one before.
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


class Starts(msgspec.Struct, frozen=True):
    """The file of one worker: its good starts, and its latest start, good or not."""

    good: tuple[StartRecord, ...] = ()
    latest: StartRecord | None = None

    @property
    def last_good(self) -> StartRecord | None:
        return self.good[-1] if self.good else None

    def with_good(self, record: StartRecord) -> "Starts":
        """With one more good start, which is the latest one too."""
        return Starts((*self.good, record)[-MAX_GOOD:], record)
