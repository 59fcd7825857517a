"""Phi-3 and Phi-4: one matrix for queries, keys and values, one for gates and ups.

Owns what a Phi-3 config.json says. Must not know tensors.
"""

from typing import Any, Final

from workers.engine.models.config_file import ConfigFile
from workers.engine.models.decoder_keys import SLIDING, attention, decoder, dense, layer_windows
from workers.engine.models.description import Layer, ModelDescription, RopeKind, TensorNames
from workers.engine.models.rope import stated_rotation

MODEL_TYPES: Final = ("phi3",)
ARCHITECTURES: Final = ("Phi3ForCausalLM",)

_DEFAULTS: Final[dict[str, Any]] = {
    "vocab_size": 32_064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
"""transformers' defaults of absent keys."""

_NAMES: Final = TensorNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))


def describe(file: ConfigFile) -> ModelDescription:
    """See `families`. Some files call longrope yarn, and mean longrope."""
    file = file.with_defaults(_DEFAULTS)
    file.refuse("attention_bias", "lm_head_bias")
    file = ConfigFile(file.path, {**file.raw, **_renamed(file)})
    window = file.count("sliding_window") if file.raw.get("sliding_window") else 0
    if window >= file.count("max_position_embeddings"):
        window = 0
    count, mlp = file.count("num_hidden_layers"), dense(file)
    layers = [
        Layer(mixer=attention(file, window=each), mlp=mlp)
        for each in layer_windows(file, window, [SLIDING] * count)
    ]
    return decoder(file, "Phi-3", layers, names=_NAMES)


def _renamed(file: ConfigFile) -> dict[str, object]:
    """The rotation's parameters with the kind that they mean."""
    stated = stated_rotation(file).raw
    kind = stated.get("rope_type") or stated.get("type")
    if kind != RopeKind.YARN.value:
        return {}
    renamed = {**stated, "rope_type": RopeKind.LONG.value}
    return {"rope_parameters": renamed, "rope_scaling": None}
