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
    model_type = raw.get("model_type")
    describe = MODEL_TYPES.get(str(model_type))
    unknown = [name for name in architectures if name not in ARCHITECTURES]
    if describe is None or unknown:
        raise ConfigError(f"{path}: {_unknown(unknown, model_type, is_known=describe is not None)}")
    return describe(ConfigFile(path, raw))


def _unknown(architectures: list[object], model_type: object, *, is_known: bool) -> str:
    """What is not known, of the two names that a model has, and which are."""
    if architectures:
        what, known = f"architecture {', '.join(map(str, architectures))}", ARCHITECTURES
    else:
        what, known = f"model_type {model_type!r}", tuple(MODEL_TYPES)
    if architectures and not is_known:
        what += f" (model_type {model_type!r})"
    return (
        f"{what} is not supported: choose one of {', '.join(known)}, or serve it with another "
        'engine, as engine = "vllm"'
    )
