"""Qwen3.5 to 3.8 and Qwen3-Next: three layers of the gated delta rule, then one of gated attention,
each with a dense network or with a mixture of experts beside a shared one.

Owns what their config.json says, of the text models and of those with an image tower, which is left
out, as are the layers that guess further tokens. Must not know tensors.
"""

from typing import Final

from workers.engine.models.config_file import ConfigFile
from workers.engine.models.decoder_keys import FULL, attention, decoder, dense, tied_by
from workers.engine.models.description import (
    DeltaRule,
    Dense,
    Experts,
    Layer,
    ModelDescription,
    TensorNames,
)
from workers.engine.models.mixture import mixture, mixture_layers
from workers.engine.models.rope import read_rope

_NEXT: Final = "qwen3_next"
_MIXTURES: Final = ("qwen3_5_moe", "qwen3_5_moe_text", _NEXT)
_TOWERS: Final = ("qwen3_5", "qwen3_5_moe")

MODEL_TYPES: Final = ("qwen3_5", "qwen3_5_text", *_MIXTURES)
ARCHITECTURES: Final = (
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3NextForCausalLM",
)

LINEAR: Final = "linear_attention"

_DEFAULTS: Final = {
    "vocab_size": 248_320,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
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

_MIXTURE_DEFAULTS: Final = {
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}

_NEXT_DEFAULTS: Final = {
    **_MIXTURE_DEFAULTS,
    "vocab_size": 151_936,
    "intermediate_size": 5632,
    "num_hidden_layers": 48,
    "num_experts": 512,
    "num_experts_per_tok": 10,
}

_KNOWN: Final = {
    "attn_output_gate": (True,),
    "output_gate_type": ("swish", "silu"),
    "mamba_ssm_dtype": ("float32",),
    "hidden_act": ("silu",),
}

_NAMES: Final = TensorNames(
    prefixes=("model.language_model.", "model."),
    skipped=("model.visual.", "visual.", "mtp."),
)

_NEXT_NAMES: Final = TensorNames(
    skipped=("mtp.",), delta_in=("in_proj_qkvz",), delta_gates=("in_proj_ba",)
)


def describe(file: ConfigFile) -> ModelDescription:
    """See `families`."""
    model_type = file.raw["model_type"]
    text = file.table("text_config") if model_type in _TOWERS else file
    default = {**_DEFAULTS, **_mixture_defaults(str(model_type))}
    said = {**file.outer("tie_word_embeddings"), **text.stated, **tied_by(file, text)}
    text = ConfigFile(file.path, {**default, **said})
    text.refuse("attention_bias", *(() if model_type in _MIXTURES else ("num_experts",)))
    for key, known in _KNOWN.items():
        if text.raw.get(key, known[0]) not in known:
            raise text.lacks(f"{key} = {text.raw[key]!r}")
    full = attention(text, read_rope(text, text.count("head_dim")), head_norms=True, out_gate=True)
    delta = _delta(text)
    layers = [
        Layer(mixer=full if kind == FULL else delta, mlp=mlp)
        for kind, mlp in zip(_kinds(text), _mlps(text, str(model_type)), strict=True)
    ]
    is_next = model_type == _NEXT
    return decoder(
        text, "Qwen3-Next" if is_next else "Qwen3.5", layers, norm_offset=1,
        names=_NEXT_NAMES if is_next else _NAMES,
    )  # fmt: skip


def _mixture_defaults(model_type: str) -> dict[str, int]:
    if model_type == _NEXT:
        return _NEXT_DEFAULTS
    return _MIXTURE_DEFAULTS if model_type in _MIXTURES else {}


def _mlps(text: ConfigFile, model_type: str) -> list[Dense | Experts]:
    """What feeds forward, layer by layer. Only files of Qwen3-Next say that some layers are dense,
    or that weights do not add up to 1.
    """
    count = text.count("num_hidden_layers")
    if model_type not in _MIXTURES:
        return [dense(text)] * count
    is_next = model_type == _NEXT
    experts = mixture(
        text,
        renormalises=text.flag("norm_topk_prob", default=True) if is_next else True,
        shared_width=text.count("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    mixed = mixture_layers(text) if is_next else (True,) * count
    return [experts if is_mixed else dense(text) for is_mixed in mixed]


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
