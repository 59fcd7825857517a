"""Llama 2 to 3.3 and the many models that are built alike, some under names of their own; Mistral,
which adds a window: in all layers (7B v0.1), in none (later ones), or by turns; Ministral 3, whose
queries grow with their position; and Seed-OSS, which has biases at queries, keys and values.

Owns what their config.json says, of the text models and of Mistral's with an image tower, which is
left out. Must not know tensors.
"""

from typing import Any, Final

from workers.engine.models.config_file import ConfigFile
from workers.engine.models.decoder_keys import (
    SLIDING,
    attention,
    decoder,
    dense,
    layer_windows,
    tied_by,
)
from workers.engine.models.description import Layer, ModelDescription, TensorNames
from workers.engine.models.rope import refuse_partial

_LLAMAS: Final = ("llama", "internlm3", "iquestcoder", "exaone")
"""transformers has one class for all of them."""
_SEED: Final = "seed_oss"
_TOWER: Final = "mistral3"
_MISTRALS: Final = ("mistral", "ministral3")

MODEL_TYPES: Final = (*_LLAMAS, *_MISTRALS, _TOWER, _SEED)
ARCHITECTURES: Final = (
    "LlamaForCausalLM",
    "InternLM3ForCausalLM",
    "IQuestCoderForCausalLM",
    "MistralForCausalLM",
    "Ministral3ForCausalLM",
    "Mistral3ForConditionalGeneration",
    "SeedOssForCausalLM",
)

_FAMILIES: Final = {
    "internlm3": "InternLM3",
    "iquestcoder": "IQuest-Coder",
    "exaone": "EXAONE",
    "mistral": "Mistral",
    "ministral3": "Ministral 3",
    "seed_oss": "Seed-OSS",
}

_OLD_NAMES: Final = {"qkv_bias": "attention_bias", "bias": "mlp_bias"}
"""Keys of InternLM3's first files, as transformers reads them."""

_LLAMA: Final[dict[str, Any]] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "llama": _LLAMA,
    "exaone": _LLAMA,
    "internlm3": {
        "vocab_size": 128_512,
        "hidden_size": 4096,
        "intermediate_size": 10_240,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-5,
    },
    "iquestcoder": {
        "vocab_size": 76_800,
        "hidden_size": 5120,
        "intermediate_size": 27_648,
        "num_hidden_layers": 80,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
    },
    "mistral": {
        **_LLAMA,
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
    },
    "seed_oss": {
        "vocab_size": 155_136,
        "hidden_size": 4096,
        "intermediate_size": 27_648,
        "num_hidden_layers": 64,
        "num_attention_heads": 80,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 524_288,
        "attention_bias": True,
    },
    "ministral3": {
        "vocab_size": 131_072,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 34,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 16.0,
            "original_max_position_embeddings": 16_384,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
}
"""transformers' defaults of absent keys."""

_NAMES: Final = TensorNames(
    prefixes=("model.", "language_model.model.", "model.language_model."),
    skipped=(
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ),
)


def describe(file: ConfigFile) -> ModelDescription:
    """See `families`. `pretraining_tp` only says how the weights were once cut."""
    if file.raw["model_type"] == _TOWER:
        file = _text_of(file)
    model_type = str(file.raw["model_type"])
    old = _OLD_NAMES.items() if model_type == "internlm3" else ()
    renamed = {name: file.raw[key] for key, name in old if key in file.raw}
    default = {**_DEFAULTS[model_type]}
    rotation = default.pop("rope_parameters", None)
    file = ConfigFile(file.path, {**default, **file.raw, **renamed})
    if rotation and not {"rope_parameters", "rope_scaling"} & file.stated.keys():
        file = ConfigFile(file.path, {**file.raw, "rope_parameters": rotation})
    file.refuse("mlp_bias")
    refuse_partial(file)
    is_mistral = model_type in _MISTRALS
    biased = file.flag("attention_bias") and not is_mistral
    out_biased = file.flag("attention_out_bias") if model_type == _SEED else biased
    windows = _windows(file) if is_mistral else (0,) * file.count("num_hidden_layers")
    layers = [
        Layer(
            mixer=attention(file, window=window, qkv_bias=biased, out_bias=out_biased),
            mlp=dense(file),
        )
        for window in windows
    ]
    return decoder(file, _FAMILIES.get(model_type, "Llama"), layers, names=_NAMES)


def _text_of(file: ConfigFile) -> ConfigFile:
    """The table of the text model, with what the file says beside it. Where neither says whether
    the head is tied, it is.
    """
    text = file.table("text_config")
    kind = text.raw.get("model_type", "mistral")
    if kind not in _MISTRALS:
        raise file.lacks(f"a text_config with model_type = {kind!r}")
    key = "tie_word_embeddings"
    stated = [table.raw[key] for table in (file, text) if key in table.raw]
    tied = tied_by(file, text) if stated else {key: True}
    return ConfigFile(file.path, {**file.outer(), **text.raw, "model_type": kind, **tied})


def _windows(file: ConfigFile) -> tuple[int, ...]:
    """The windows of Mistral: null is none; without the key it is transformers' default."""
    stated = file.raw.get("sliding_window", 4096)
    window = 0 if stated is None else file.count("sliding_window", 4096)
    return layer_windows(file, window, [SLIDING] * file.count("num_hidden_layers"))
