"""Named tensors in the safetensors files of a model directory.

Owns which file holds which tensor and every way in which files can be wrong. Must not know models.
Nothing but safetensors is opened: other formats can run code.
"""

from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open
from torch import Tensor

from protocol.errors import ConfigError
from workers.engine.model_config import read_json

SINGLE_NAME: Final = "model.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"
_REMEDY: Final = "fetch the model again"


def shard_names(index_path: Path) -> tuple[str, ...]:
    """The files that an index names, sorted. Raises `ConfigError` for a broken index."""
    return tuple(sorted(set(_weight_map(index_path).values())))


class Checkpoint:
    """The tensors of a model directory by name; use as a context manager."""

    def __init__(self, model_dir: Path) -> None:
        """Raises `ConfigError` if a file is missing or broken."""
        self._dir = model_dir
        self._files: dict[str, Any] = {}
        self._where: dict[str, str] = {}
        if (model_dir / INDEX_NAME).exists():
            self._open_shards(_weight_map(model_dir / INDEX_NAME))
        else:
            names = self._open(SINGLE_NAME).keys()
            self._where = dict.fromkeys(names, SINGLE_NAME)

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self._files.clear()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._where)

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name`, on the CPU. Raises `ConfigError` if missing or of another shape."""
        if name not in self._where:
            raise ConfigError(f"{self._dir} has no tensor {name}: {_REMEDY}")
        path = self._dir / self._where[name]
        try:
            found = tuple(self._files[self._where[name]].get_slice(name).get_shape())
            if found != shape:
                raise ConfigError(
                    f"{path}: {name} has shape {list(found)}, but config.json asks for "
                    f"{list(shape)}: {_REMEDY}"
                )
            tensor: Tensor = self._files[self._where[name]].get_tensor(name)
        except SafetensorError as error:
            raise ConfigError(f"{path}: {name} cannot be read ({error}): {_REMEDY}") from error
        return tensor

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
            self._files[file_name] = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{path} is not a safetensors file ({error}): {_REMEDY}") from error
        return self._files[file_name]


def _weight_map(index_path: Path) -> dict[str, str]:
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{index_path} has no weight_map: {_REMEDY}")
    for shard in weight_map.values():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ConfigError(f"{index_path} names {shard!r}, not a file beside it: {_REMEDY}")
    return weight_map
