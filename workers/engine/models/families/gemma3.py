"""Gemma 3: five layers with a window, then one without; norms around every branch.

Owns what a Gemma 3 config.json says, of the text models and of those with an image tower, which is
left out. Must not know tensors.
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
    logit_cap,
    tied_by,
)
from workers.engine.models.description import Gate, Layer, ModelDescription, Rope, TensorNames
from workers.engine.models.rope import read_rope, refuse_partial, stated_rotation

MODEL_TYPES: Final = ("gemma3_text", "gemma3")
ARCHITECTURES: Final = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")

_DEFAULTS: Final = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
"""Published files leave out what transformers has as a default."""

_THETA: Final = 1e6
_LOCAL_THETA: Final = 1e4

_NAMES: Final = TensorNames(
    prefixes=("model.", "model.language_model.", "language_model.model."),
    mixer_out_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_out_norm="post_feedforward_layernorm",
    skipped=(
        "model.vision_tower.",
        "model.multi_modal_projector.",
        "vision_tower.",
        "multi_modal_projector.",
    ),
)


def describe(file: ConfigFile) -> ModelDescription:
    """See `families`."""
    text = file.table("text_config") if file.raw.get("model_type") == "gemma3" else file
    said = {**file.outer(), **text.stated, **tied_by(file, text)}
    text = ConfigFile(file.path, {**_DEFAULTS, **said})
    text.refuse(
        "attn_logit_softcapping", "use_bidirectional_attention", "attention_bias",
    )  # fmt: skip
    full, local = _rotations(text)
    pattern, count = text.count("sliding_window_pattern"), text.count("num_hidden_layers")
    kinds = [SLIDING if (index + 1) % pattern else FULL for index in range(count)]
    mlp = dense(text, "hidden_activation", Gate.GELU_TANH)
    scale = text.number("query_pre_attn_scalar") ** -0.5
    layers = [
        Layer(
            mixer=attention(
                text, local if window else full, window=window, head_norms=True, scale=scale
            ),
            mlp=mlp,
            branch_norms=True,
        )
        for window in layer_windows(text, text.count("sliding_window"), kinds)
    ]
    return decoder(
        text, "Gemma 3", layers, tied=True, norm_offset=1, names=_NAMES,
        embedding_scale=text.count("hidden_size") ** 0.5, logit_cap=logit_cap(text),
    )  # fmt: skip


def _rotations(text: ConfigFile) -> tuple[Rope, Rope]:
    """Rotations of layers without a window, and of those with one; by transformers 5 and before."""
    head_dim = text.count("head_dim")
    by_kind = text.table("rope_parameters")
    if FULL in by_kind.raw or SLIDING in by_kind.raw:
        kind = {"rope_parameters": by_kind.table(FULL).raw}
        refuse_partial(text, by_kind.table(FULL), by_kind.table(SLIDING))
        scaled = stated_rotation(ConfigFile(text.path, {**text.raw, **kind}))
        full = read_rope(text, head_dim, parameters=scaled, theta=_THETA)
        local = read_rope(text, head_dim, parameters=by_kind.table(SLIDING), theta=_LOCAL_THETA)
        return full, local
    refuse_partial(text)
    theta = text.number("rope_local_base_freq", _LOCAL_THETA)
    stated = ConfigFile(text.path, {"rope_theta": theta})
    return read_rope(text, head_dim, theta=_THETA), read_rope(text, head_dim, parameters=stated)
