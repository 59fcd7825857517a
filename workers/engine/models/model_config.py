"""The description of a model, read from its config.json.

Owns which models we run and what we say about the others. Must not know tensors, nor families.
"""

from pathlib import Path

from protocol.errors import ConfigError
from workers.engine.models.config_file import ConfigFile
from workers.engine.models.description import ModelConfig
from workers.engine.models.families import ARCHITECTURES, MODEL_TYPES
from workers.model_dir import CONFIG_NAME, read_json

__all__ = ["ModelConfig", "read_model_config"]


def read_model_config(model_dir: Path) -> ModelConfig:
    """The description of the model in `model_dir`. Raises `ConfigError` for one we cannot run."""
    path = model_dir / CONFIG_NAME
    raw = read_json(path)
    architectures = raw.get("architectures") or []
    if not isinstance(architectures, list):
        raise ConfigError(f"{path}: architectures is {architectures!r}, not a list of names")
    describe = MODEL_TYPES.get(str(raw.get("model_type")))
    unknown = [name for name in architectures if name not in ARCHITECTURES]
    if describe is None or unknown:
        shown = ", ".join(map(str, unknown or architectures or [raw.get("model_type")]))
        raise ConfigError(
            f"{path}: architecture {shown} is not supported: choose one of "
            f'{", ".join(ARCHITECTURES)}, or serve it with another engine, as engine = "vllm"'
        )
    return describe(ConfigFile(path, raw))
