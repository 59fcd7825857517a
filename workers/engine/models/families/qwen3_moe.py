"""Qwen3's mixtures (30B-A3B, 235B-A22B, Qwen3-Coder): the attention of Qwen3, and in most layers,
or all, a mixture of experts.

Owns what their config.json says. Must not know tensors.
"""

from typing import Any, Final

from workers.engine.models.config_file import ConfigFile
from workers.engine.models.decoder_keys import attention, decoder, dense
from workers.engine.models.description import Layer, ModelDescription
from workers.engine.models.families.qwen import NAMES, stated_window
from workers.engine.models.mixture import mixture, mixture_layers
from workers.engine.models.rope import refuse_partial

MODEL_TYPES: Final = ("qwen3_moe",)
ARCHITECTURES: Final = ("Qwen3MoeForCausalLM",)

_DEFAULTS: Final[dict[str, Any]] = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
}
"""transformers' defaults of absent keys; 128 experts, under either name."""


def _windows(file: ConfigFile) -> tuple[int, ...]:
    """The window of each layer. All have one, or none: transformers reads no `max_window_layers` of
    a mixture.
    """
    return (stated_window(file),) * file.count("num_hidden_layers")


def describe(file: ConfigFile) -> ModelDescription:
    """See `families`."""
    file = file.with_defaults(_DEFAULTS)
    if not {"num_experts", "num_local_experts"} & file.raw.keys():
        file = file.with_defaults({"num_experts": 128})
    refuse_partial(file)
    biased = file.flag("attention_bias")
    experts = mixture(file, renormalises=file.flag("norm_topk_prob"))
    layers = [
        Layer(
            mixer=attention(file, window=window, head_norms=True, qkv_bias=biased, out_bias=biased),
            mlp=experts if is_mixed else dense(file),
        )
        for window, is_mixed in zip(_windows(file), mixture_layers(file), strict=True)
    ]
    return decoder(file, "Qwen3", layers, names=NAMES)
