"""Qwen3's mixtures (30B-A3B, 235B-A22B, Qwen3-Coder): the attention of Qwen3, and in most layers,
or all, a mixture of experts.

Owns what their config.json says. Must not know tensors.
"""

from typing import Final

from workers.engine.models.config_file import ConfigFile
from workers.engine.models.decoder_keys import attention, decoder, dense
from workers.engine.models.description import Layer, ModelDescription
from workers.engine.models.families.qwen import NAMES, windows
from workers.engine.models.mixture import mixture, mixture_layers

MODEL_TYPES: Final = ("qwen3_moe",)
ARCHITECTURES: Final = ("Qwen3MoeForCausalLM",)


def describe(file: ConfigFile) -> ModelDescription:
    """See `families`."""
    biased = file.flag("attention_bias")
    experts = mixture(file, renormalises=file.flag("norm_topk_prob"))
    layers = [
        Layer(
            mixer=attention(file, window=window, head_norms=True, qkv_bias=biased, out_bias=biased),
            mlp=experts if is_mixed else dense(file),
        )
        for window, is_mixed in zip(windows(file), mixture_layers(file), strict=True)
    ]
    return decoder(file, "Qwen3", layers, names=NAMES)
