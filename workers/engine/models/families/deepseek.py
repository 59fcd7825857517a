"""GLM-4.7-Flash and DeepSeek-V3: latent attention, and behind some dense layers mixtures whose
experts are chosen by sigmoids, of the best groups, with a bias that only chooses.

Owns what their config.json says. Layers behind the last one are no part of the network: they draft
further tokens (`drafting`). Must not know tensors.
"""

import math
from typing import Any, Final

from kernels.experts import Routing
from workers.engine.models.config_file import ConfigFile
from workers.engine.models.decoder_keys import decoder, dense
from workers.engine.models.description import Experts, Latent, Layer, ModelDescription, TensorNames
from workers.engine.models.rope import read_rope, stated_rotation

_LITE: Final = "glm4_moe_lite"

MODEL_TYPES: Final = (_LITE, "deepseek_v3")
ARCHITECTURES: Final = ("Glm4MoeLiteForCausalLM", "DeepseekV3ForCausalLM")

_FAMILIES: Final = {_LITE: "GLM-4.7-Flash", "deepseek_v3": "DeepSeek-V3"}

_FURTHER: Final = "num_nextn_predict_layers"
_COMMON: Final[dict[str, Any]] = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "n_shared_experts": 1,
    "num_nextn_predict_layers": 0,
}
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    _LITE: {
        **_COMMON,
        "vocab_size": 154_880,
        "hidden_size": 2048,
        "intermediate_size": 10_240,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 47,
        "num_attention_heads": 20,
        "max_position_embeddings": 202_752,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "n_routed_experts": 64,
        "num_experts_per_tok": 4,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.8,
        "rms_norm_eps": 1e-5,
    },
    "deepseek_v3": {
        **_COMMON,
        "vocab_size": 129_280,
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "max_position_embeddings": 4096,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
    },
}
"""transformers' defaults of absent keys. A null `q_lora_rank` means none."""

_KNOWN: Final = {
    "hidden_act": ("silu",),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
}

DENSE, SPARSE = "dense", "sparse"


def describe(file: ConfigFile) -> ModelDescription:
    """See `families`."""
    model_type = str(file.raw["model_type"])
    stated = {key: v for key, v in file.raw.items() if v is not None or key == "q_lora_rank"}
    file = ConfigFile(file.path, {**_DEFAULTS[model_type], **stated})
    file.refuse("attention_bias")
    if (every := file.count("moe_layer_freq", 1)) != 1:
        raise file.lacks(f"moe_layer_freq = {every}")
    for key, known in _KNOWN.items():
        if file.raw.get(key, known[0]) not in known:
            raise file.lacks(f"{key} = {file.raw[key]!r}")
    mixer, experts, plain = _latent(file), _experts(file), dense(file)
    layers = [Layer(mixer=mixer, mlp=experts if kind == SPARSE else plain) for kind in _kinds(file)]
    return decoder(file, _FAMILIES[model_type], layers, names=_names(file, len(layers)))


def _latent(file: ConfigFile) -> Latent:
    """Scores are divided by a whole head's size, before it is absorbed, and grow with YaRN."""
    turned, plain = file.count("qk_rope_head_dim"), file.count("qk_nope_head_dim")
    rank, rope = file.count("kv_lora_rank"), read_rope(file, turned)
    if rope.dim != turned:
        raise file.lacks(f"a rotation of {rope.dim} of {turned} dimensions")
    scale, stated = (plain + turned) ** -0.5, stated_rotation(file)
    share = stated.raw.get("mscale_all_dim")
    if (stated.raw.get("rope_type") or stated.raw.get("type") or "default") != "default" and share:
        factor = stated.number("factor")
        scale *= (1.0 if factor <= 1 else 0.1 * share * math.log(factor) + 1.0) ** 2
    return Latent(
        num_heads=file.count("num_attention_heads"),
        num_kv_heads=1,
        head_dim=rank + turned,
        rope=rope,
        scale=scale,
        rank=rank,
        plain_dim=plain,
        value_dim=file.count("v_head_dim"),
        query_rank=file.count("q_lora_rank") if file.raw["q_lora_rank"] else 0,
        interleaved=file.flag("rope_interleave", default=True),
    )


def _experts(file: ConfigFile) -> Experts:
    width = file.count("moe_intermediate_size")
    routing = Routing(
        num_experts=file.count("n_routed_experts"),
        num_active=file.count("num_experts_per_tok"),
        is_sigmoid=True,
        num_groups=file.count("n_group"),
        num_active_groups=file.count("topk_group"),
        renormalises=file.flag("norm_topk_prob", default=True),
        scale=file.number("routed_scaling_factor"),
    )
    room = routing.num_experts // routing.num_groups * routing.num_active_groups
    if routing.num_experts % routing.num_groups or not routing.num_active <= room:
        raise file.error(
            f"{routing.num_active} of {routing.num_experts} experts in {routing.num_groups} groups "
            f"of which {routing.num_active_groups} compete do not fit together"
        )
    return Experts(
        width=width,
        routing=routing,
        shared_width=width * file.count("n_shared_experts"),
        choice_bias=True,
    )


def _kinds(file: ConfigFile) -> tuple[str, ...]:
    """Dense or sparse, layer by layer."""
    count = file.count("num_hidden_layers")
    if "first_k_dense_replace" in file.raw and "mlp_layer_types" not in file.raw:
        first = file.count("first_k_dense_replace") if file.raw["first_k_dense_replace"] else 0
        return tuple([DENSE if index < first else SPARSE for index in range(count)])
    default = (DENSE, *[SPARSE] * (count - 1))
    return file.words("mlp_layer_types", count, (DENSE, SPARSE)) or default


def _names(file: ConfigFile, count: int) -> TensorNames:
    """Layers behind the last one draft further tokens."""
    further = file.count(_FURTHER) if file.raw.get(_FURTHER) else 0
    return TensorNames(
        shared="mlp.shared_experts",
        skipped=tuple([f"model.layers.{count + index}." for index in range(further)]),
    )
