"""The description of a model, read from its config.json.

Owns which models we run and what we say about the others. Must not know tensors, nor families.
"""

from pathlib import Path
from typing import Final

from protocol.errors import ConfigError
from workers.engine.load.quantize import stated_in
from workers.engine.models.config_file import ConfigFile
from workers.engine.models.description import ModelDescription
from workers.engine.models.families import ARCHITECTURES, MODEL_TYPES, TYPE_FORMATS
from workers.model_dir import CONFIG_NAME, read_json

LACKING: Final = {
    "deepseek_v32": "DeepSeek-V3.2 chooses keys by an index",
    "deepseek_v4": "DeepSeek-V4 compresses its keys and chooses them by an index",
    "glm_moe_dsa": "GLM-5 chooses keys by an index",
    "glm5_next": "GLM-5 chooses keys by an index",
    "kimi_k2": "Kimi K2, a DeepSeek-V3 of 384 experts, was compared with no reference",
    "kimi_k25": "Kimi K2.5, a DeepSeek-V3 of 384 experts, was compared with no reference",
    "kimi_linear": "Kimi Linear has recurrent layers of another kind",
}
"""Why models that resemble a family that runs do not run themselves, by model_type."""

_ELSEWHERE: Final = 'serve it with another engine, as engine = "vllm"'


def read_model_config(model_dir: Path) -> ModelDescription:
    """The description of the model in `model_dir`. Raises `ConfigError` for one we cannot run."""
    path = model_dir / CONFIG_NAME
    raw = read_json(path)
    if (stated := stated_in(raw)) is not None:
        raw = {**raw, "quantization_config": stated}
    architectures = raw.get("architectures") or []
    if not isinstance(architectures, list):
        raise ConfigError(f"{path}: architectures is {architectures!r}, not a list of names")
    model_type = raw.get("model_type")
    describe = MODEL_TYPES.get(str(model_type))
    if (lacking := LACKING.get(str(model_type))) is not None:
        raise ConfigError(f"{path}: {lacking}, which is not supported: {_ELSEWHERE}")
    unknown = [name for name in architectures if name not in ARCHITECTURES]
    if describe is None or unknown:
        raise ConfigError(f"{path}: {_unknown(unknown, model_type, is_known=describe is not None)}")
    config = describe(ConfigFile(path, raw))
    formats = TYPE_FORMATS[str(model_type)]
    if config.stored not in formats:
        raise ConfigError(
            f"{path}: {config.family} is not read as {config.stored}: take a checkpoint of one of "
            f"the forms {', '.join(formats)}, or {_ELSEWHERE}"
        )
    return config


def _unknown(architectures: list[object], model_type: object, *, is_known: bool) -> str:
    """An error text: which of the model's two names (architecture, model_type) is not known, and
    which names are.
    """
    if architectures:
        what, known = f"architecture {', '.join(map(str, architectures))}", ARCHITECTURES
    else:
        what, known = f"model_type {model_type!r}", tuple(MODEL_TYPES)
    if architectures and not is_known:
        what += f" (model_type {model_type!r})"
    return f"{what} is not supported: choose one of {', '.join(known)}, or {_ELSEWHERE}"
