"""The record of a worker's turns: what its sleep was measured to take, kept over restarts.

Owns the file: one for each worker that shares a device, `turns/ID.json` in the state directory. Its
supervisor alone writes it, after each measurement; `herma config check` and `herma plan` read it.
Without it a worker has the card alone in its first turn, in which it is measured again.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from config import WorkerConfig, state_dir
from housekeeping.state_file import write_atomically
from protocol.errors import ConfigError
from protocol.reading import read_state

FOLDER: Final = "turns"
_ID_CHARS: Final = 16
_NOT_THE_ENGINES: Final = frozenset((
    "name", "serves", "gateways", "residency", "idle_s", "stall_s", "drain_s", "prepare",
    "curve_secret_file", "curve_server_key", "insecure_local", "owns_gpu", "kv_events",
))  # fmt: skip
"""Keys that do not change how much memory an engine takes."""

Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**50)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class TurnRecord(msgspec.Struct, frozen=True):
    """What is known of the worker `worker` of the configuration file `file` on `device` (of
    `total_bytes`). `engine` is a digest of the keys of its engine: a record with another digest is
    not used. `way` is how it sleeps, `wake_s` the time of a wake from that, and `refusals` says why
    each better way does not work. `start_s` is the time of a start, `host_bytes` what a process
    that sleeps without an end keeps in the host's memory beyond what it has there awake.
    """

    worker: str
    file: str
    device: str
    engine: str
    residency: str = "always"
    total_bytes: Bytes | None = None
    awake_bytes: Bytes | None = None
    asleep_bytes: Bytes = 0
    wake_s: Seconds | None = None
    sleep_s: Seconds | None = None
    start_s: Seconds | None = None
    host_bytes: Bytes = 0
    way: str = ""
    refusals: dict[str, str] = {}


def engine_id(config: WorkerConfig) -> str:
    """The keys of a worker that its engine's memory depends on, as a short name."""
    keys = (key for key in config.__struct_fields__ if key not in _NOT_THE_ENGINES)
    encoded = msgspec.json.encode([getattr(config, key) for key in keys], order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:_ID_CHARS]


def record_path(folder: Path, worker: str, file: str) -> Path:
    """The file of the worker's record."""
    name = hashlib.sha256(f"{file}\n{worker}".encode()).hexdigest()[:_ID_CHARS]
    return folder / f"{name}.json"


def records_dir(environ: Mapping[str, str]) -> Path:
    """The folder of the records. Raises `ConfigError` without a state directory."""
    return state_dir(environ) / FOLDER


def read_record(path: Path) -> TurnRecord | None:
    """The record; None if there is none, or if it cannot be read: then it is measured again."""
    with suppress(ConfigError):
        return read_state(path, TurnRecord)
    return None


def read_records(folder: Path, file: str) -> Iterator[TurnRecord]:
    """The records of the workers of the configuration file `file`."""
    for path in sorted(folder.glob("*.json")):
        record = read_record(path)
        if record is not None and record.file == file:
            yield record


def write_record(path: Path, record: TurnRecord) -> None:
    """Raises `ConfigError` with the reason."""
    try:
        write_atomically(path, msgspec.json.format(msgspec.json.encode(record)))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
