"""Qwen2, 2.5 and 3, dense: Qwen2 has biases at queries, keys and values, Qwen3 norms queries and
keys, head by head.

Owns what their config.json says. Must not know tensors.
"""

from typing import Final

from workers.engine.models.config_file import ConfigFile
from workers.engine.models.decoder_keys import (
    FULL,
    SLIDING,
    attention,
    decoder,
    dense,
    layer_windows,
)
from workers.engine.models.description import Layer, ModelDescription, TensorNames

MODEL_TYPES: Final = ("qwen2", "qwen3")
ARCHITECTURES: Final = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")

NAMES: Final = TensorNames(skipped=("mtp.",))
"""A head that drafts, if there is one (`workers.engine.drafting`)."""


def describe(file: ConfigFile) -> ModelDescription:
    """See `families`."""
    is_old = file.raw["model_type"] == "qwen2"
    biased = file.flag("attention_bias")
    layers = [
        Layer(
            mixer=attention(
                file,
                window=window,
                head_norms=not is_old,
                qkv_bias=is_old or biased,
                out_bias=biased and not is_old,
            ),
            mlp=dense(file),
        )
        for window in windows(file)
    ]
    return decoder(file, "Qwen2" if is_old else "Qwen3", layers, names=NAMES)


def windows(file: ConfigFile) -> tuple[int, ...]:
    """The window of each layer: none, unless `use_sliding_window` says so; then the layers from
    `max_window_layers` on have one, or those that `layer_types` names.
    """
    count = file.count("num_hidden_layers")
    if not file.flag("use_sliding_window"):
        return (0,) * count
    first = min(count, file.count("max_window_layers", 28))
    default = [FULL] * first + [SLIDING] * (count - first)
    return layer_windows(file, file.count("sliding_window", 4096), default)
