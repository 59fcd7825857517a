"""Qwen2, 2.5 and 3, dense: Qwen2 has biases at queries, keys and values, Qwen3 norms queries and
keys, head by head.

Owns what their config.json says. Must not know tensors.
"""

from typing import Any, Final

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
from workers.engine.models.rope import refuse_partial

MODEL_TYPES: Final = ("qwen2", "qwen3")
ARCHITECTURES: Final = ("Qwen2ForCausalLM", "Qwen3ForCausalLM")

_DEFAULTS: Final[dict[str, Any]] = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
}
"""transformers' defaults of absent keys."""

_HEADS: Final[dict[str, dict[str, Any]]] = {"qwen2": {}, "qwen3": {"head_dim": 128}}
"""Like `_DEFAULTS`, for each `model_type`."""

NAMES: Final = TensorNames(skipped=("mtp.",))
"""A head that drafts, if there is one (`workers.engine.drafting`)."""


def describe(file: ConfigFile) -> ModelDescription:
    """See `families`."""
    model_type = str(file.raw["model_type"])
    file, is_old = file.with_defaults(_DEFAULTS, _HEADS[model_type]), model_type == "qwen2"
    refuse_partial(file)
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
        for window in _windows(file)
    ]
    return decoder(file, "Qwen2" if is_old else "Qwen3", layers, names=NAMES)


def stated_window(file: ConfigFile) -> int:
    """The window of the layers that have one; 0 for none, which is also what a null says."""
    if not file.flag("use_sliding_window") or file.raw.get("sliding_window", 0) is None:
        return 0
    return file.count("sliding_window", 4096)


def _windows(file: ConfigFile) -> tuple[int, ...]:
    """The window of each layer: none, unless `use_sliding_window` says so; then the layers from
    `max_window_layers` on have one, or those that `layer_types` names.
    """
    count, window = file.count("num_hidden_layers"), stated_window(file)
    if not window:
        return (0,) * count
    first = min(count, file.count("max_window_layers", 28, least=0))
    default = [FULL] * first + [SLIDING] * (count - first)
    return layer_windows(file, window, default)
