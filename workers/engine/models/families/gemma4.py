"""Gemma 4: five layers with a window, then one without, whose heads are larger; norms around every
branch. 31B and 12B are dense, in 26B-A4B each layer has a mixture beside its dense network, and in
E4B and E2B layers have side inputs ("per-layer embeddings"), and the last ones borrow keys.

Owns what a Gemma 4 config.json says, of the text models and of those with towers for images and
sound, which are left out. Must not know tensors.
"""

from typing import Any, Final

from kernels.experts import GELU_TANH, Routing
from workers.engine.models.config_file import ConfigFile
from workers.engine.models.decoder_keys import (
    FULL,
    SLIDING,
    attention,
    decoder,
    dense,
    logit_cap,
    tied_by,
)
from workers.engine.models.description import (
    Attention,
    Dense,
    Experts,
    Gate,
    Layer,
    ModelDescription,
    TensorNames,
)
from workers.engine.models.rope import read_rope, refuse_partial

_TOWERS: Final = ("gemma4", "gemma4_unified")
_UNIFIED: Final = ("gemma4_unified", "gemma4_unified_text")
"""The `model_type`s of 12B, which has neither side inputs nor mixtures."""

MODEL_TYPES: Final = ("gemma4_text", "gemma4_unified_text", *_TOWERS)
ARCHITECTURES: Final = (
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForCausalLM",
    "Gemma4UnifiedForConditionalGeneration",
)

_DEFAULTS: Final[dict[str, Any]] = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "max_position_embeddings": 131_072,
    "sliding_window": 512,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 0,
    "rope_parameters": {
        FULL: {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1e6,
        },
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    },
}
"""transformers' defaults of absent keys."""

_UNIFIED_DEFAULTS: Final = {
    **_DEFAULTS,
    "max_position_embeddings": 262_144,
    "sliding_window": 1024,
}

_PATTERN: Final = 6
"""Where the file does not name the kinds of layers, one layer in this many has no window."""

_PARTS: Final = (
    "vision_tower.",
    "audio_tower.",
    "embed_vision.",
    "embed_audio.",
    "vision_embedder.",
)

_NAMES: Final = TensorNames(
    prefixes=("model.", "model.language_model.", "language_model.model."),
    mixer_out_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_out_norm="post_feedforward_layernorm",
    router="router.proj",
    experts="experts",
    shared="mlp",
    skipped=(*_PARTS, *(f"model.{part}" for part in _PARTS)),
)


def describe(file: ConfigFile) -> ModelDescription:
    """See `families`."""
    text = _text_of(file)
    text.refuse("attention_bias")
    refuse_partial(text, text.table("rope_parameters").table(SLIDING))
    if (seen := text.raw.get("use_bidirectional_attention")) not in (None, False, "vision"):
        raise text.lacks(f"use_bidirectional_attention = {seen!r}")
    kinds = _kinds(text)
    own = len(kinds) - _number(text, "num_kv_shared_layers")
    if missing := sorted(set(kinds) - set(kinds[:own])):
        raise text.error(f"num_kv_shared_layers leaves no {missing[0]} with keys of its own")
    side = 0 if text.raw["model_type"] in _UNIFIED else _number(text, "hidden_size_per_layer_input")
    layers = [
        Layer(
            mixer=_attention(text, kind, index, borrows=index >= own),
            mlp=_mlp(text, borrows=index >= own),
            branch_norms=True,
            side_width=side,
            scaled=True,
        )
        for index, kind in enumerate(kinds)
    ]
    return decoder(
        text,
        "Gemma 4",
        layers,
        tied=True,
        names=_NAMES,
        embedding_scale=text.count("hidden_size") ** 0.5,
        logit_cap=logit_cap(text),
        side_vocab=text.count("vocab_size_per_layer_input") if side else 0,
    )


def _text_of(file: ConfigFile) -> ConfigFile:
    """The text model's table, with the keys beside that table and the defaults of absent keys."""
    text = file.table("text_config") if file.raw.get("model_type") in _TOWERS else file
    kind = {"model_type": file.raw["model_type"]}
    said = {**file.outer(), **text.stated, **tied_by(file, text), **kind}
    default = _UNIFIED_DEFAULTS if file.raw["model_type"] in _UNIFIED else _DEFAULTS
    return ConfigFile(file.path, {**default, **said})


def _kinds(text: ConfigFile) -> tuple[str, ...]:
    """The kind of each layer; the last one is always without a window."""
    count = text.count("num_hidden_layers")
    default = tuple([FULL if (index + 1) % _PATTERN == 0 else SLIDING for index in range(count)])
    kinds = text.words("layer_types", count, (FULL, SLIDING)) or default
    return (*kinds[:-1], FULL)


def _attention(text: ConfigFile, kind: str, index: int, *, borrows: bool) -> Attention:
    """Scores are not divided: queries and keys are normed."""
    is_full = kind == FULL
    equal = text.flag("attention_k_eq_v") and is_full
    sizes = _sizes(text, index, is_full=is_full, equal=equal)
    heads = ConfigFile(text.path, {**text.raw, **sizes})
    rope = read_rope(
        heads, heads.count("head_dim"), parameters=text.table("rope_parameters").table(kind)
    )
    return attention(
        heads, rope, scale=1.0, window=0 if is_full else text.count("sliding_window"),
        head_norms=True, value_norms=True, keys_are_values=equal, borrows=borrows,
    )  # fmt: skip


def _sizes(text: ConfigFile, index: int, *, is_full: bool, equal: bool) -> dict[str, object]:
    """What differs from the file's heads in layer `index`: by the table of layers that newer
    exports have, or by the keys of published files.
    """
    if "per_layer_config" in text.raw:
        own = text.table("per_layer_config").table(str(index)).raw
        return {key: own[key] for key in ("head_dim", "num_key_value_heads") if key in own}
    if not is_full:
        return {}
    sizes = {"head_dim": text.count("global_head_dim")}
    if equal and text.raw.get("num_global_key_value_heads"):
        sizes["num_key_value_heads"] = text.count("num_global_key_value_heads")
    return dict(sizes)


def _mlp(text: ConfigFile, *, borrows: bool) -> Dense | Experts:
    """The dense network, and the mixture beside it in models that have one."""
    own = dense(text, "hidden_activation", Gate.GELU_TANH)
    if own.gate is not Gate.GELU_TANH:
        raise text.lacks(f"hidden_activation = {own.gate.value!r}")
    if borrows and text.flag("use_double_wide_mlp"):
        own = Dense(width=2 * own.width, gate=own.gate)
    if not text.flag("enable_moe_block") or text.raw["model_type"] in _UNIFIED:
        return own
    count, active = text.count("num_experts"), text.count("top_k_experts")
    if active > count:
        raise text.error(f"top_k_experts is {active} of {count} experts: fetch it again")
    return Experts(
        width=text.count("moe_intermediate_size"),
        routing=Routing(num_experts=count, num_active=active),
        activation=GELU_TANH,
        shared_width=own.width,
        gate=own.gate,
        apart=True,
    )


def _number(text: ConfigFile, key: str) -> int:
    """A count that may be 0."""
    return text.count(key) if text.raw.get(key) else 0
