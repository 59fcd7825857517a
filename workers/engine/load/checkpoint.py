"""Named tensors in the safetensors files of a model directory.

Owns which file holds which tensor, where in it, and every way in which files can be wrong. Must not
know models. Nothing but safetensors is opened: other formats can run code.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from protocol.errors import ConfigError
from workers.engine.load.file_stream import FileStream
from workers.model_dir import check_form, is_pointer, pointer_text, read_json

SINGLE_NAME: Final = "model.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"
_REMEDY: Final = "fetch the model again"
_QUANTISED_ENDS: Final = (".qweight", ".weight_packed")
_DTYPES: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class _Place(NamedTuple):
    """The place of a tensor's bytes: an open file, the offset of the first byte, their type."""

    descriptor: int
    offset: int
    dtype: torch.dtype


def shard_names(index_path: Path) -> tuple[str, ...]:
    """The files that an index names, sorted. Raises `ConfigError` for a broken index."""
    return tuple(sorted(set(_weight_map(index_path).values())))


class Checkpoint:
    """The tensors of a model directory by name; use as a context manager.

    With a `stream`, `read_into` only queues, and `settle` waits. `num_bytes`: the files' size.
    """

    def __init__(self, model_dir: Path, stream: FileStream | None = None) -> None:
        """Raises `ConfigError` if a file is missing or broken."""
        self._dir = model_dir
        self._stream = stream
        self._files: dict[str, Any] = {}
        self._places: dict[str, _Place] = {}
        self._descriptors: list[int] = []
        self._where: dict[str, str] = {}
        self._copied_bytes = 0
        self.num_bytes = 0
        self._names: frozenset[str] | None = None
        if (model_dir / INDEX_NAME).exists():
            weight_map = _weight_map(model_dir / INDEX_NAME)
            if (model_dir / SINGLE_NAME).exists() and SINGLE_NAME not in weight_map.values():
                raise ConfigError(
                    f"{model_dir} holds {SINGLE_NAME} and {INDEX_NAME}, which names other files, "
                    "so it holds two models: remove the one that is not meant"
                )
            self._open_shards(weight_map)
        else:
            check_form(model_dir)
            names = self._open(SINGLE_NAME).keys()
            self._where = dict.fromkeys(names, SINGLE_NAME)

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._files.clear()

    @property
    def model_dir(self) -> Path:
        """The directory of the files."""
        return self._dir

    @property
    def names(self) -> frozenset[str]:
        """The names of all tensors."""
        if self._names is None:
            # A mixture has 20,000 names, and every product asks for them.
            self._names = frozenset(self._where)
        return self._names

    @property
    def done_bytes(self) -> int:
        """What `read_into` has copied so far."""
        return self._copied_bytes + (0 if self._stream is None else self._stream.done_bytes)

    def read(self, name: str, shape: tuple[int, ...], *, is_float: bool = False) -> Tensor:
        """The tensor `name`, on the CPU. Raises `ConfigError` if missing or of another shape, and
        with `is_float` for integers: those of a format that nothing states are no weights yet.
        """
        path = self._check(name, shape, is_float=is_float)
        try:
            tensor: Tensor = self._files[self._where[name]].get_tensor(name)
        except SafetensorError as error:
            raise ConfigError(f"{path}: {name} cannot be read ({error}): {_REMEDY}") from error
        return tensor

    def read_into(self, name: str, out: Tensor) -> None:
        """Copy the tensor `name` into the contiguous `out`, converted to its dtype.

        Raises as `read`; with a stream the copy is done after `settle`.
        """
        if self._stream is None:
            tensor = self.read(name, tuple(out.shape), is_float=out.is_floating_point())
            out.copy_(tensor)
            self._copied_bytes += tensor.nbytes
            return
        self._check(name, tuple(out.shape), is_float=out.is_floating_point())
        self._stream.put(*self._places[name], out)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of the tensor `name`. Raises `ConfigError` if there is none."""
        if name not in self._where:
            raise ConfigError(f"{self._dir} has no tensor {name}: {_REMEDY}")
        return tuple(self._files[self._where[name]].get_slice(name).get_shape())

    def is_fp8(self, name: str) -> bool:
        """Whether the tensor `name`, which there is, holds e4m3."""
        return bool(self._files[self._where[name]].get_slice(name).get_dtype() == "F8_E4M3")

    def settle(self, progress: Callable[[], None]) -> None:
        """Wait for everything queued; `progress` is called now and then. Raises `ConfigError`."""
        if self._stream is None:
            return
        try:
            self._stream.settle(progress)
        except OSError as error:
            raise ConfigError(f"{self._dir} cannot be read ({error}): {_REMEDY}") from error

    def _check(self, name: str, shape: tuple[int, ...], *, is_float: bool = False) -> Path:
        if name not in self._where:
            raise self._missing(name)
        path = self._dir / self._where[name]
        try:
            tensor = self._files[self._where[name]].get_slice(name)
            found = tuple(tensor.get_shape())
        except SafetensorError as error:
            raise ConfigError(f"{path}: {name} cannot be read ({error}): {_REMEDY}") from error
        if found != shape:
            raise ConfigError(
                f"{path}: {name} has shape {list(found)}, but config.json asks for "
                f"{list(shape)}: {_REMEDY}"
            )
        if is_float and (kind := str(tensor.get_dtype()))[0] in "UIB" and kind != "BF16":
            raise ConfigError(
                f"{path}: {name} holds integers ({kind}), so it is quantised in a way that "
                "config.json does not state: take the quantization_config of its makers"
            )
        return path

    def _missing(self, name: str) -> ConfigError:
        held = next((other for other in sorted(self._where) if _unwrapped(other) == name), None)
        if held is not None:
            return ConfigError(
                f"{self._dir} has {held} instead of {name}, as of modules that were saved within "
                "others (torch.compile, checkpoints of activations, parallel training): save the "
                "inner modules, or take the parts that begin with _ away from the names"
            )
        module = name.removesuffix(".weight")
        found = [end for end in _QUANTISED_ENDS if module + end in self._where]
        if not found:
            return ConfigError(f"{self._dir} has no tensor {name}: {_REMEDY}")
        return ConfigError(
            f"{self._dir} has {module}{found[0]} instead of {name}, so it is quantised in another "
            "way than its config.json says: take the quantization_config of its makers"
        )

    def _open_shards(self, weight_map: dict[str, str]) -> None:
        for shard in sorted(set(weight_map.values())):
            self._open(shard)
        for name, shard in weight_map.items():
            if name not in self._files[shard].keys():  # noqa: SIM118 - not a dict
                raise ConfigError(f"{self._dir / shard} has no tensor {name}: {_REMEDY}")
        self._where = weight_map

    def _open(self, file_name: str) -> Any:  # noqa: ANN401 - the library has no types
        path = self._dir / file_name
        if not path.is_file():
            raise ConfigError(f"{path} does not exist: {_REMEDY}, with all its safetensors files")
        try:
            with path.open("rb") as file:  # the library calls a file without rights a missing one
                head = file.read(64)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        if is_pointer(head):
            raise ConfigError(pointer_text(path))
        try:
            self._files[file_name] = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{path} is not a safetensors file ({error}): {_REMEDY}") from error
        self.num_bytes += path.stat().st_size
        if self._stream is not None:
            self._locate(path)
        return self._files[file_name]

    def _locate(self, path: Path) -> None:
        """Read the header of a file that the library has found sound."""
        descriptor = os.open(path, os.O_RDONLY)
        self._descriptors.append(descriptor)
        length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
        header = json.loads(os.pread(descriptor, length, 8))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if entry["dtype"] not in _DTYPES:
                raise ConfigError(f"{path}: {name} holds {entry['dtype']}: choose another model")
            offset = 8 + length + entry["data_offsets"][0]
            self._places[name] = _Place(descriptor, offset, _DTYPES[entry["dtype"]])


def _unwrapped(name: str) -> str:
    """A tensor's name without the modules that PyTorch puts around others, as `_orig_mod`."""
    return ".".join(part for part in name.split(".") if not part.startswith("_"))


def _weight_map(index_path: Path) -> dict[str, str]:
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{index_path} has no weight_map: {_REMEDY}")
    for shard in weight_map.values():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ConfigError(f"{index_path} names {shard!r}, not a file beside it: {_REMEDY}")
    return weight_map
