"""Checks model directories: complete, intact, and of a format that the engine reads.

Owns the reading of safetensors headers. Reads no weights.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from config import INDEX_DRAFTERS, Config, builtin_drafters, builtin_models
from herma.doctor.finding import Finding
from herma.doctor.host import Host
from protocol.errors import ConfigError
from workers.model_dir import other_form

CHECK: Final = "model files"

_POINTER: Final = b"version https://git-lfs"
_MAX_HEADER: Final = 100 * 2**20
"""The limit of the safetensors format."""


def check_models(host: Host, config: Config) -> Iterator[Finding]:
    """Check the model directory of each worker of this host, and its drafter's."""
    for name, files in _folders(config).items():
        if not host.exists(name):
            continue  # a missing directory is an error of the start; a hub id has none
        folder = Path(name)
        is_native = "config.json" in files
        if is_native and (found := _other_form(host, folder)) is not None:
            yield found  # what else is missing belongs to another form
            continue
        for file in files:
            if not host.exists(folder / file):
                yield _broken(folder / file, "does not exist", "copy it beside the weights")
        if is_native:
            yield from _check_weights(host, folder)


def _folders(config: Config) -> dict[str, tuple[str, ...]]:
    """The files that each folder must contain; weights if there is a config.json."""
    found: dict[str, tuple[str, ...]] = {}
    for worker in config.workers:
        chosen = worker.drafting
        if chosen is not None and chosen.drafter not in (*INDEX_DRAFTERS, *builtin_drafters()):
            found.setdefault(chosen.drafter, ("config.json",))
        if worker.model not in builtin_models():
            is_native = worker.engine == "native"
            files = ("tokenizer.json", "config.json") if is_native else ("tokenizer.json",)
            found[worker.model] = max(found.get(worker.model, ()), files, key=len)
    return found


def _other_form(host: Host, folder: Path) -> Finding | None:
    """A directory of files that the native engine does not read."""
    try:
        other = other_form(host.path(folder))
    except ConfigError as error:
        return _broken(folder, "holds an adapter that is not readable", str(error))
    return None if other is None else _broken(folder, other.what, other.remedy)


def _check_weights(host: Host, folder: Path) -> Iterator[Finding]:
    index = folder / "model.safetensors.index.json"
    if host.exists(index):
        try:
            shards = sorted(set(json.loads(host.text(index))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            yield _broken(index, "is no index of safetensors files", "download it again")
            return
        for name in shards:
            if not host.exists(folder / name):
                yield _broken(folder / name, "is missing, but the index names it", "download it")
    names = list(host.names(folder, "*.safetensors"))
    for name in names:
        try:
            fault = _fault_of(host.path(name))
        except OSError as error:
            fault = f"cannot be read: {error.strerror}"
            yield _broken(name, fault, "give this user the right to read it, or correct its link")
            continue
        if fault is not None:
            yield _broken(name, fault, "download it again and compare its size")


def _broken(name: Path, fault: str, remedy: str) -> Finding:
    return Finding("error", CHECK, f"{name} {fault}", "the engine cannot load the model", remedy)


def _fault_of(path: Path) -> str | None:
    """The fault of a safetensors file, from its header and its length; None if it has none."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if head.startswith(_POINTER[:8]):
            return "is a pointer of git-lfs, not the file: run git lfs pull"
        if head.startswith(b"GGUF"):
            return "is a GGUF file under another name"
        length = int.from_bytes(head, "little")
        if len(head) < 8 or not 0 < length <= min(size, _MAX_HEADER):
            return "is no safetensors file"
        try:
            header = json.loads(file.read(length))
        except ValueError:
            return "has a header that is no JSON"
    return _wrong_length(header, size - 8 - length)


def _wrong_length(header: dict[str, Any], num_bytes: int) -> str | None:
    try:
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        wanted = max([int(entry["data_offsets"][1]) for entry in tensors], default=0)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return "has a header that does not say where its tensors are"
    if num_bytes == wanted:
        return None
    return f"has {num_bytes:,} bytes of tensors where its header says {wanted:,}"
