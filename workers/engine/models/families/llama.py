"""Llama 2 to 3.3 and the many models that are built alike; and Mistral, which adds a window: in all
layers (7B v0.1), in none (later ones), or by turns.

Owns what their config.json says. Must not know tensors.
"""

from typing import Final

from workers.engine.models.config_file import ConfigFile
from workers.engine.models.decoder import SLIDING, attention, decoder, dense, layer_windows
from workers.engine.models.description import Layer, ModelConfig

MODEL_TYPES: Final = ("llama", "mistral")
ARCHITECTURES: Final = ("LlamaForCausalLM", "MistralForCausalLM")


def describe(file: ConfigFile) -> ModelConfig:
    """See `families`. `pretraining_tp` only says how the weights were once cut."""
    file.refuse("mlp_bias")
    is_llama = file.raw["model_type"] == "llama"
    biased = file.flag("attention_bias") and is_llama
    windows = (0,) * file.count("num_hidden_layers") if is_llama else _windows(file)
    layers = [
        Layer(
            mixer=attention(file, window=window, qkv_bias=biased, out_bias=biased),
            mlp=dense(file),
        )
        for window in windows
    ]
    return decoder(file, "Llama" if is_llama else "Mistral", layers)


def _windows(file: ConfigFile) -> tuple[int, ...]:
    """Of Mistral: null is none; without the key it is transformers' default."""
    stated = file.raw.get("sliding_window", 4096)
    window = 0 if stated is None else file.count("sliding_window", 4096)
    return layer_windows(file, window, [SLIDING] * file.count("num_hidden_layers"))
