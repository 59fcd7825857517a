"""The families of models that run, a file each: what their config.json says, as a description.

Owns the list. `describe` of a family reads a config.json of one of its `MODEL_TYPES` and raises
`ConfigError` for what it asks for and we lack. `FORMATS` of a family are those that it is read in,
where they are others than `FORMATS` here.
"""

from collections.abc import Callable
from typing import Final

from workers.engine.load.quantize import StoredFormat
from workers.engine.models.config_file import ConfigFile
from workers.engine.models.description import ModelDescription
from workers.engine.models.families import (
    deepseek,
    gemma3,
    gemma4,
    gpt_oss,
    llama,
    phi3,
    qwen,
    qwen3_5,
    qwen3_moe,
)

__all__ = ["ARCHITECTURES", "FAMILIES", "FORMATS", "MODEL_TYPES", "TYPE_FORMATS"]

FAMILIES: Final = (qwen, qwen3_moe, llama, gemma3, gemma4, phi3, qwen3_5, gpt_oss, deepseek)

MODEL_TYPES: Final[dict[str, Callable[[ConfigFile], ModelDescription]]] = {
    model_type: family.describe for family in FAMILIES for model_type in family.MODEL_TYPES
}

ARCHITECTURES: Final = tuple([name for family in FAMILIES for name in family.ARCHITECTURES])

FORMATS: Final = tuple([stored for stored in StoredFormat if stored is not StoredFormat.MXFP4])
"""The formats in which a family is read that does not name its own."""

TYPE_FORMATS: Final[dict[str, tuple[StoredFormat, ...]]] = {
    model_type: getattr(family, "FORMATS", FORMATS)
    for family in FAMILIES
    for model_type in family.MODEL_TYPES
}
