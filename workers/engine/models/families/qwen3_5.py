"""Qwen3.5 and 3.6, dense: three layers of the gated delta rule, then one of gated attention.

Owns what their config.json says, of the text models and of those with an image tower, which is left
out, as are the layers that guess further tokens. Must not know tensors.
"""

from typing import Final

from workers.engine.models.config_file import ConfigFile
from workers.engine.models.decoder import FULL, attention, decoder, dense, tied_by
from workers.engine.models.description import DeltaRule, Layer, ModelConfig, Names
from workers.engine.models.rope import read_rope

MODEL_TYPES: Final = ("qwen3_5", "qwen3_5_text")
ARCHITECTURES: Final = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")

LINEAR: Final = "linear_attention"

_OUTER: Final = ("dtype", "torch_dtype", "quantization_config", "tie_word_embeddings")
"""What a file with a tower says beside the table of its text model."""

_DEFAULTS: Final = {
    "vocab_size": 248_320,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
}
"""Published files leave out what transformers has as a default."""

_KNOWN: Final = {
    "attn_output_gate": (True,),
    "output_gate_type": ("swish", "silu"),
    "mamba_ssm_dtype": ("float32",),
    "hidden_act": ("silu",),
}

_NAMES: Final = Names(
    prefixes=("model.language_model.", "model."),
    skipped=("model.visual.", "visual.", "mtp."),
)


def describe(file: ConfigFile) -> ModelConfig:
    """See `families`."""
    text = file.table("text_config") if file.raw["model_type"] == "qwen3_5" else file
    outer = {key: file.raw[key] for key in _OUTER if key in file.raw}
    stated = {key: value for key, value in text.raw.items() if value is not None}
    text = ConfigFile(file.path, {**_DEFAULTS, **outer, **stated, **tied_by(file, text)})
    text.refuse("attention_bias", "num_experts")
    for key, known in _KNOWN.items():
        if text.raw.get(key, known[0]) not in known:
            raise text.lacks(f"{key} = {text.raw[key]!r}")
    full = attention(text, read_rope(text, text.count("head_dim")), head_norms=True, out_gate=True)
    mlp, delta = dense(text), _delta(text)
    layers = [Layer(mixer=full if kind == FULL else delta, mlp=mlp) for kind in _kinds(text)]
    return decoder(text, "Qwen3.5", layers, norm_offset=1, names=_NAMES)


def _kinds(text: ConfigFile) -> tuple[str, ...]:
    """Full attention or the delta rule, layer by layer: every fourth, unless the file says else."""
    count, every = text.count("num_hidden_layers"), text.count("full_attention_interval")
    default = [LINEAR if (index + 1) % every else FULL for index in range(count)]
    return text.words("layer_types", count, (FULL, LINEAR)) or tuple(default)


def _delta(text: ConfigFile) -> DeltaRule:
    rule = DeltaRule(
        num_key_heads=text.count("linear_num_key_heads"),
        num_value_heads=text.count("linear_num_value_heads"),
        key_dim=text.count("linear_key_head_dim"),
        value_dim=text.count("linear_value_head_dim"),
        conv_width=text.count("linear_conv_kernel_dim"),
    )
    if rule.num_value_heads % rule.num_key_heads or rule.conv_width < 2:
        raise text.error(
            f"{rule.num_value_heads} value heads for {rule.num_key_heads} key heads, behind a "
            f"convolution of {rule.conv_width}, do not fit together"
        )
    return rule
