"""Triton's cache of compiled kernels, and how many kernels a start compiled or found there.

Owns the watch over Triton's compiler, the size of its cache (`TRITON_CACHE_DIR`, else
~/.triton/cache), which is kept between starts, and the marks in it. A mark is an empty file: the
cache holds the kernels of a worker's start, up to its first answer or all. Must not know the
kernels.
"""

import os
import sys
import threading
from contextlib import suppress
from enum import StrEnum
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, final

import msgspec

from config import WorkerConfig
from housekeeping.state_file import make_private

CACHE_VARIABLE: Final = "TRITON_CACHE_DIR"

_PACKAGES: Final = (Path(__file__).parents[1], Path(__file__).parents[3] / "kernels")
_SOURCES: Final = (".py", ".cu", ".h", ".json")

_DECISIVE: Final = (
    "model", "token_budget", "dtype", "quantization", "prefill", "kv_dtype", "invariant",
    "kv_tokens", "max_seqs", "context_length", "max_context", "block_size",
)  # fmt: skip
"""Keys of a worker's configuration on which its kernels depend. With names, addresses or time
limits among them, a restart at another port would compile again."""

_MOST_NAMED: Final = 20


class Extent(StrEnum):
    """How much of a start a mark stands for."""

    FIRST = "first"
    ALL = "complete"


@final
class KernelCache:
    """Counts compilations from now on."""

    def __init__(self) -> None:
        self.num_compiled = 0
        self.num_found = 0
        self.compile_s = 0.0
        self.compiled: list[str] = []

    def count(self, name: str, *, cache_hit: bool, seconds: float) -> None:
        """The kernel `name` was compiled, or found."""
        if cache_hit:
            self.num_found += 1
        else:
            self.num_compiled += 1
            self.compile_s += seconds
            self.compiled.append(name)

    def summary(self) -> str:
        """One line for people, with the size of the whole cache."""
        num_files, num_bytes = cache_size(cache_dir())
        few = self.compiled if len(self.compiled) <= _MOST_NAMED else []
        text = (
            f"{self.num_found} found, {self.num_compiled} compiled in {self.compile_s:.1f} s; "
            f"{cache_dir()} holds {num_files} files, {num_bytes / 2**20:.0f} MiB"
        )
        return f"{text}; compiled {', '.join(few)}" if few else text


def watch_kernel_cache() -> KernelCache:
    """Count what Triton compiles in this process from now on."""
    cache = KernelCache()
    if sys.platform == "linux":
        from triton import knobs  # noqa: PLC0415 -- not on every platform

        def listen(*, src: Any, cache_hit: bool, times: object, **_: object) -> None:  # noqa: ANN401
            microseconds = getattr(times, "total", 0)
            name = str(getattr(src, "name", src))
            cache.count(name, cache_hit=cache_hit, seconds=1e-6 * microseconds)

        knobs.compilation.listener = listen
    return cache


def hash_compiler() -> threading.Thread:
    """Let a thread compute the hash over Triton's own 460 MB, which Triton needs before it looks
    for its first kernel. That needs the interpreter's lock only briefly, so it costs nothing while
    the driver starts.
    """
    from triton.runtime.cache import triton_key  # noqa: PLC0415 -- not on every platform

    thread = threading.Thread(target=triton_key, name="hash", daemon=True)
    thread.start()
    return thread


def cache_dir() -> Path:
    """The directory of Triton's cache of compiled kernels."""
    named = os.environ.get(CACHE_VARIABLE, "")
    return Path(named) if named else Path.home() / ".triton" / "cache"


def cache_size(directory: Path) -> tuple[int, int]:
    """The numbers of files and bytes in a cache; zeros if it does not exist. Files that another
    process removes meanwhile do not count.
    """
    sizes = []
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                sizes.append(Path(folder, name).stat().st_size)
    return len(sizes), sum(sizes)


def is_complete(config: WorkerConfig, arch: int, extent: Extent = Extent.ALL) -> bool:
    """Whether a start of this worker on a card of capability `arch` has nothing to compile, as
    far as is known.
    """
    return _mark(config, arch, extent).exists()


def mark_complete(config: WorkerConfig, arch: int, extent: Extent = Extent.ALL) -> None:
    """Mark that such a start has nothing left to compile."""
    mark = _mark(config, arch, extent)
    make_private(mark.parent)
    mark.touch()


def _mark(config: WorkerConfig, arch: int, extent: Extent) -> Path:
    """The path of a mark. Its name is a hash of all that kernels depend on: the worker's keys, the
    card, the versions of torch and Triton, and our sources.
    """
    decisive = {name: getattr(config, name) for name in _DECISIVE}
    parts = [msgspec.json.encode(decisive), b"%d" % arch]
    parts += [version(name).encode() for name in ("torch", "triton")]
    for package in _PACKAGES:
        paths = [path for path in package.rglob("*") if path.suffix in _SOURCES]
        parts += [path.read_bytes() for path in sorted(paths)]
    digest = sha256()
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return cache_dir() / f"herma-{digest.hexdigest()[:32]}.{extent}"
