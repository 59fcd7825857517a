"""Tiny random drafters on disk, as their authors publish them: DFlash, DFlash 2, MTP, EAGLE-3."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Shapes = dict[str, tuple[int, ...]]

DFLASH: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "attention_bias": False,
    "block_size": 8,
    "dtype": "float32",
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 48,
    "intermediate_size": 64,
    "max_position_embeddings": 1024,
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "num_key_value_heads": 3,
    "num_target_layers": 5,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "vocab_size": 151,
    "layer_types": ["full_attention", "full_attention"],
    "dflash_config": {"mask_token_id": 150, "target_layer_ids": [1, 3]},
}

EAGLE3: dict[str, Any] = {
    **{key: DFLASH[key] for key in DFLASH if key not in ("block_size", "dflash_config")},
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "layer_types": None,
    "draft_vocab_size": 60,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]},
}

MTP: dict[str, Any] = {
    **{key: DFLASH[key] for key in DFLASH if key not in ("block_size", "dflash_config")},
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 5,
    "layer_types": None,
    "mtp_num_hidden_layers": 1,
    "num_attention_heads": 4,  # as the target has them
    "num_key_value_heads": 2,
}


def layer_shapes(config: dict[str, Any], prefix: str, *, depth: int, normed: bool) -> Shapes:
    """The tensors of a decoder layer whose queries, keys and values read `depth` numbers."""
    hidden, inner, head_dim = (config[k] for k in ("hidden_size", "intermediate_size", "head_dim"))
    query, key = (config[k] * head_dim for k in ("num_attention_heads", "num_key_value_heads"))
    shapes: Shapes = {
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (query, depth), "self_attn.k_proj": (key, depth),
        "self_attn.v_proj": (key, depth), "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    if normed:
        shapes |= {"self_attn.q_norm": (head_dim,), "self_attn.k_norm": (head_dim,)}
    return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}


def dflash_shapes(config: dict[str, Any]) -> Shapes:
    """The shapes of DFlash, and of DFlash 2 where the configuration says so."""
    hidden, own = config["hidden_size"], config["dflash_config"]
    shapes: Shapes = {
        "fc.weight": (hidden, len(own["target_layer_ids"]) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    size = own.get("conv_kernel_size", 0)
    for index in range(config["num_hidden_layers"]):
        prefix = f"layers.{index}."
        shapes |= layer_shapes(config, prefix, depth=hidden, normed=True)
        for branch in ("attention_conv", "mlp_conv") if size else ():
            groups = hidden // own["conv_group_size"]
            shapes[f"{prefix}{branch}.base_kernel"] = (2, size, hidden)
            shapes[f"{prefix}{branch}.kernel_projection.weight"] = (2 * size * groups, hidden)
    if rank := own.get("selector_rank"):
        for name in ("predecessor", "successor"):
            shapes[f"candidate_selector.{name}_codebook.weight"] = (config["vocab_size"], rank)
        shapes["candidate_selector.hidden_projection.weight"] = (rank, hidden)
    return shapes


def eagle3_shapes(config: dict[str, Any]) -> Shapes:
    """The shapes of EAGLE-3 with a vocabulary of its own."""
    hidden = config["hidden_size"]
    return {
        "fc.weight": (hidden, 3 * hidden),
        "midlayer.hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (config["draft_vocab_size"], hidden),
        **layer_shapes(config, "midlayer.", depth=2 * hidden, normed=False),
    }


def mtp_shapes(config: dict[str, Any]) -> Shapes:
    """The shapes of an MTP head for a dense Qwen3."""
    hidden = config["hidden_size"]
    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    return {
        "mtp.fc.weight": (hidden, 2 * hidden),
        **{f"mtp.{name}.weight": (hidden,) for name in norms},
        **layer_shapes(config, "mtp.layers.0.", depth=hidden, normed=True),
    }


def random_drafter(shapes: Shapes, *, std: float = 0.2, seed: int = 0) -> dict[str, torch.Tensor]:
    """Seeded normal weights; norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * std + ("norm" in name)
        for name, shape in shapes.items()
    }


def write_drafter(path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    """Write config.json and model.safetensors to the new directory `path`."""
    path.mkdir(parents=True)
    kept = {key: value for key, value in config.items() if value is not None}
    (path / "config.json").write_text(json.dumps(kept))
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def drafted_ids(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """`d2t` and `t2d` of a drafter that has every second token or so."""
    count, vocabulary = config["draft_vocab_size"], config["vocab_size"]
    ids = torch.arange(count) * 2 + 1
    has = torch.zeros(vocabulary, dtype=torch.bool)
    has[ids] = True
    return {"d2t": ids - torch.arange(count), "t2d": has}


def _mixture_shapes(config: dict[str, Any], prefix: str) -> Shapes:
    """The shapes of a mixture with a shared expert, each expert's tensors by themselves."""
    hidden, count, width = (
        config[key] for key in ("hidden_size", "num_experts", "moe_intermediate_size")
    )
    sizes = {f"experts.{index}.": width for index in range(count)}
    sizes["shared_expert."] = config["shared_expert_intermediate_size"]
    shapes: Shapes = {"gate": (count, hidden), "shared_expert_gate": (1, hidden)}
    for name, size in sizes.items():
        shapes |= {f"{name}{side}_proj": (size, hidden) for side in ("gate", "up")}
        shapes[f"{name}down_proj"] = (hidden, size)
    return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}


def add_gated_head(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Write an MTP head beside the tensors of a tiny Qwen3.5 or Qwen3-Next: norms of 1 + w, gates
    among the queries, and a mixture where the model has some. Returns its config.json and tensors.
    """
    config = json.loads((path / "config.json").read_text()) | {"mtp_num_hidden_layers": 1}
    (path / "config.json").write_text(json.dumps(config))
    shapes = mtp_shapes(config)
    query = "mtp.layers.0.self_attn.q_proj.weight"
    shapes[query] = (2 * config["num_attention_heads"] * config["head_dim"], config["hidden_size"])
    if "num_experts" in config:
        shapes = {name: size for name, size in shapes.items() if ".mlp." not in name}
        shapes |= _mixture_shapes(config, "mtp.layers.0.mlp.")
    tensors = {
        name: tensor - float("norm" in name) for name, tensor in random_drafter(shapes).items()
    }
    own = load_file(path / "model.safetensors")
    save_file({**own, **tensors}, path / "model.safetensors", metadata={"format": "pt"})
    return config, tensors


def make_gated_right(path: Path, *, influence: float) -> None:
    """Change such a model so that the token that follows depends on the last one, but for what its
    layers add, which is multiplied by `influence`; and the head so that it says what follows.
    """
    tensors = load_file(path / "model.safetensors")
    hidden = tensors["mtp.fc.weight"].shape[0]
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            tensor.mul_(0.0 if name.startswith("mtp.") else influence)
    generator = torch.Generator().manual_seed(2)
    embedding = tensors["model.embed_tokens.weight"]
    embedding.copy_(torch.randn(embedding.shape, generator=generator))
    tensors["mtp.fc.weight"].copy_(torch.eye(hidden, 2 * hidden))
    tensors["mtp.pre_fc_norm_embedding.weight"].zero_()  # norms multiply by 1 + w
    tensors["mtp.norm.weight"].copy_(tensors["model.norm.weight"])
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
