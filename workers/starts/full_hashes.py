"""Full hashes of a model's files, for a comparison that sizes and times cannot make.

Owns the file of hashes beside the record of starts; only `herma diff --deep` writes it. Drops the
read pages again: 149 GB of page cache look like used memory on unified memory.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from housekeeping.state_file import write_atomically
from protocol.errors import ConfigError
from protocol.reading import read_state
from workers.starts.compare import StartDifference
from workers.starts.gather import drop_read_pages
from workers.starts.record import StartRecord, WeightFile

_CHUNK_BYTES: Final = 8 * 2**20


class FullHash(msgspec.Struct, frozen=True):
    """The hash of a file's content, with the file's size and time at the moment of hashing."""

    num_bytes: int
    mtime_ns: int
    content: str

    def is_of(self, file: WeightFile) -> bool:
        return (self.num_bytes, self.mtime_ns) == (file.num_bytes, file.mtime_ns)


def hashes_path(record: Path) -> Path:
    """The file of full hashes that belongs to the record of starts at `record`."""
    return record.with_suffix(".hashes.json")


def deep_differences(
    path: Path, good: StartRecord, now: StartRecord, folder: Path
) -> list[StartDifference]:
    """The differences in the content of the files in `folder`. Keeps at `path` the hashes of files
    that are unchanged since the good start. Blocks until all files are read. Raises `ConfigError`.
    """
    kept = read_state(path, dict[str, FullHash]) or {}
    known = {name: one for name, one in kept.items() if name in good.weights}
    known = {name: one for name, one in known.items() if one.is_of(good.weights[name])}
    found = {
        name: FullHash(file.num_bytes, file.mtime_ns, _content(folder / name))
        for name, file in now.weights.items()
    }
    fresh = {
        name: one
        for name, one in found.items()
        if name not in known and name in good.weights and one.is_of(good.weights[name])
    }
    try:
        write_atomically(path, msgspec.json.encode({**known, **fresh}))
    except OSError as error:
        raise ConfigError(f"the hashes cannot be kept in {path}: {error.strerror}") from error
    return list(_changed(known, found))


def _changed(
    known: Mapping[str, FullHash], found: Mapping[str, FullHash]
) -> Iterator[StartDifference]:
    for name, one in found.items():
        if name in known and known[name].content != one.content:
            yield StartDifference("weights", f"{name} has another content")


def _content(path: Path) -> str:
    digest = xxhash.xxh3_128()
    try:
        with path.open("rb", buffering=0) as file:
            while data := file.read(_CHUNK_BYTES):
                digest.update(data)
            drop_read_pages(file.fileno())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return digest.hexdigest()
