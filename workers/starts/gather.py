"""Reads the facts of a start from a host.

Owns which files contain which fact. Blocks; starts no process and imports no library for it. A fact
that cannot be read is empty.
"""

import hashlib
import os
import platform
import re
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

from config import WorkerConfig
from housekeeping.file_root import FileRoot
from protocol.errors import ConfigError
from protocol.version import VERSION
from workers.model_dir import local_dir
from workers.starts.record import HEADER_BYTES, Library, StartRecord, WeightFile
from workers.starts.withheld import allowed_variables, recorded_variables, recorded_words

PACKAGES: Final = ("torch", "triton")
_MAX_HEADER_BYTES: Final = 64 * 2**20
_DRIVER: Final = re.compile(r"\d+\.\d+(?:\.\d+)*")
_IMAGE_ID: Final = re.compile(r'^imageid="([^"]+)"', re.MULTILINE)
_NOT_OF_THE_ENGINE: Final = (
    "name",
    "gateways",
    "curve_secret_file",
    "curve_server_key",
    "insecure_local",
    "drain_s",
)


@dataclass(frozen=True, slots=True)
class MachineOrigin(FileRoot):
    """A machine. `packages` is its folder of installed Python packages, `source` the folder of
    Herma's source; both are absolute paths on that machine.
    """

    packages: Path
    source: Path


def this_origin() -> MachineOrigin:
    """This host, with the packages and the sources of this process."""
    return MachineOrigin(
        Path("/"), Path(sysconfig.get_paths()["purelib"]), Path(__file__).resolve().parents[2]
    )


def gather(
    origin: MachineOrigin,
    config: WorkerConfig | None,
    *,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    model_dir: str,
    at: float,
    folder: str = "",
) -> StartRecord:
    """The record of a start of `config` now, without the facts that only the engine knows. `config`
    None and `model_dir` "" mean unknown.
    """
    table = {} if config is None else effective(config)
    launched = {} if config is None or config.launch is None else config.launch.env
    return StartRecord(
        at=at,
        versions=dict(_versions(origin)),
        commit=commit_of(origin),
        image=_image(origin, environ),
        driver=driver_version(origin.root),
        kernel=origin.text("/proc/sys/kernel/osrelease").strip(),
        environment=allowed_variables(environ),
        arguments=recorded_words(arguments),
        folder=folder,
        config=table,
        config_hash=xxhash.xxh3_64_hexdigest(msgspec.json.encode(table, order="deterministic")),
        model_dir=model_dir,
        weights=read_weights(origin, model_dir),
        libraries=read_libraries(origin, {**environ, **launched}),
    )


def model_folder(model: str) -> str:
    """The directory of a worker's `model`; empty if the model is no directory of this host."""
    try:
        found = local_dir(model)
    except ConfigError:
        return ""
    return "" if found is None else str(found)


def effective(config: WorkerConfig) -> dict[str, Any]:
    """The part of the worker's table that affects its engine, without secrets."""
    table: dict[str, Any] = msgspec.to_builtins(config)
    for key in _NOT_OF_THE_ENGINE:
        del table[key]
    if config.launch is not None:
        table["launch"] = {
            "argv": list(recorded_words(config.launch.argv)),
            "env": recorded_variables(config.launch.env),
            "cwd": config.launch.cwd,
            "stop": list(recorded_words(config.launch.stop)),
        }
    return table


def _versions(origin: MachineOrigin) -> Iterator[tuple[str, str]]:
    yield "herma", VERSION
    yield "python", platform.python_version()
    for name in PACKAGES:
        for found in sorted(origin.path(origin.packages).glob(f"{name}-[0-9]*.dist-info")):
            yield name, found.name.removeprefix(f"{name}-").removesuffix(".dist-info")


def commit_of(origin: MachineOrigin) -> str:
    """The commit of the checkout of Herma's source; "" if the source is no checkout."""
    folder = origin.path(origin.source) / ".git"
    with suppress(OSError):
        if folder.is_file():  # a worktree: the file names its folder
            folder = Path(folder.read_text(encoding="utf-8").partition(":")[2].strip())
        head = (folder / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref: "):
            return head
        ref = head.removeprefix("ref: ")
        common = folder
        if (folder / "commondir").exists():
            common = folder / (folder / "commondir").read_text(encoding="utf-8").strip()
        if (common / ref).exists():
            return (common / ref).read_text(encoding="utf-8").strip()
        for line in (common / "packed-refs").read_text(encoding="utf-8").splitlines():
            if line.endswith(f" {ref}"):
                return line.partition(" ")[0]
    return ""


def _image(origin: MachineOrigin, environ: Mapping[str, str]) -> str:
    """The image of the container: Podman writes it into a file; for other engines a variable can
    name it.
    """
    found = _IMAGE_ID.search(origin.text("/run/.containerenv"))
    return environ.get("HERMA_IMAGE_DIGEST", found[1] if found else "")


def driver_version(root: Path = Path("/")) -> str:
    """The version of the loaded NVIDIA kernel module; empty without one. `root` is the place of the
    machine's file system on this host.
    """
    with suppress(OSError):
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        return found[0] if (found := _DRIVER.search(text)) else ""
    return ""


def read_weights(origin: MachineOrigin, model_dir: str) -> dict[str, WeightFile]:
    """The files of the model's directory; empty if there is no directory."""
    if not model_dir:
        return {}
    found: dict[str, WeightFile] = {}
    with suppress(OSError):
        for path in sorted(origin.path(model_dir).iterdir()):
            if path.is_file() and not path.name.startswith("."):
                stat = path.stat()
                found[path.name] = WeightFile(stat.st_size, stat.st_mtime_ns, _header(path))
    return found


def _header(path: Path) -> str:
    """The hash of a file's header. A safetensors file begins with the length of its header, 8 bytes
    in little endian.
    """
    try:
        with path.open("rb") as file:
            data = file.read(HEADER_BYTES)
            if path.suffix == ".safetensors":
                size = min(8 + int.from_bytes(data[:8], "little"), _MAX_HEADER_BYTES)
                data = data[:size] + file.read(max(0, size - len(data)))
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return xxhash.xxh3_128_hexdigest(data)


def read_libraries(origin: MachineOrigin, environ: Mapping[str, str]) -> dict[str, Library]:
    """The libraries of `/etc/ld.so.preload` and `LD_PRELOAD`, by name."""
    names = origin.text("/etc/ld.so.preload").split()
    names += environ.get("LD_PRELOAD", "").replace(":", " ").split()
    return {name: _library(origin.path(name)) for name in names}


def _library(path: Path) -> Library:
    try:
        content = path.read_bytes()
    except OSError:
        return Library(0, "")
    return Library(len(content), hashlib.sha256(content).hexdigest())


def drop_read_pages(descriptor: int) -> None:
    """Drop the read pages from the page cache: on unified memory they count as used."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
