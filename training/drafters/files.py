"""A trained drafter's directory, as published ones have it.

Owns config.json, which also says what the drafter reached, and the weights. Must not know how it
was trained.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from training.drafters.networks import BLOCK, TrainedDrafter
from training.drafters.train import DraftQuality
from training.export import WEIGHTS_NAME
from training.model import Qwen3
from training.settings import Shape
from training.tokenizer import to_json


def write(
    out: Path,
    drafter: TrainedDrafter,
    model: Qwen3,
    shape: Shape,
    mask_id: int,
    found: DraftQuality,
) -> int:
    """Write the directory `out` of a drafter of `shape`; returns the bytes of its weights."""
    out.mkdir(parents=True, exist_ok=True)
    config = {**_config(drafter, model, shape, mask_id), "herma": asdict(found)}
    (out / "config.json").write_text(to_json(config), encoding="utf-8")
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in drafter.tensors().items()
    }
    save_file(tensors, out / WEIGHTS_NAME, metadata={"format": "pt"})
    (out / WEIGHTS_NAME).chmod(0o644)  # The library makes it readable for its owner only.
    return sum(tensor.nbytes for tensor in tensors.values())


def _config(drafter: TrainedDrafter, model: Qwen3, shape: Shape, mask_id: int) -> dict[str, Any]:
    common: dict[str, Any] = {
        "attention_bias": False,
        "dtype": "bfloat16",
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "max_position_embeddings": shape.context_length,
        "model_type": "qwen3",
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "num_target_layers": model.shape.num_layers,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "vocab_size": model.vocab_size,
    }
    if not drafter.taps:
        own = {"num_hidden_layers": 1, "mtp_num_hidden_layers": 1}
        return {"architectures": ["Qwen3ForCausalLM"], **common, **own}
    return {
        "architectures": ["DFlashDraftModel"],
        **common,
        "num_hidden_layers": shape.num_layers,
        "block_size": BLOCK,
        "layer_types": ["full_attention"] * shape.num_layers,
        "dflash_config": {"mask_token_id": mask_id, "target_layer_ids": list(drafter.taps)},
    }
