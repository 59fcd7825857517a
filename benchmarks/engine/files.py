"""Writes a checkpoint with the shape of a model and random weights.

Owns the conversion from merged matrices to the published names.
"""

import json
import shutil
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from config.model import DUMMY_PREFIX
from workers.engine.models.dummy import draw_weights
from workers.engine.models.model_config import Qwen3Config, read_model_config
from workers.engine.models.weights import LayerWeights
from workers.model_dir import CONFIG_NAME, dummy_dir

LAYERS_PER_FILE: Final = 8
"""3 GB of 8B: files of the usual size, which bound the memory used."""


def write_checkpoint(shape: str, directory: Path, device: torch.device, dtype: torch.dtype) -> int:
    """Write config.json, safetensors files and their index. Returns the bytes of all tensors.

    `shape` is the name of an installed shape or a directory with config.json. Raises `ConfigError`.
    """
    home = dummy_dir(f"{DUMMY_PREFIX}{shape}")
    shutil.copy(home / CONFIG_NAME, directory / CONFIG_NAME)
    config = read_model_config(home)
    weights = draw_weights(config, device, dtype)
    outer = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    if not config.tied:
        outer["lm_head.weight"] = weights.head
    weight_map: dict[str, str] = {}
    num_bytes = 0
    for first in range(-LAYERS_PER_FILE, config.num_layers, LAYERS_PER_FILE):
        tensors = outer if first < 0 else {}
        for index in range(max(0, first), min(first + LAYERS_PER_FILE, config.num_layers)):
            tensors |= _published(config, weights.layers[index], f"model.layers.{index}.")
        name = f"model-{first + LAYERS_PER_FILE:05}.safetensors"
        on_host = {key: tensor.cpu().contiguous() for key, tensor in tensors.items()}
        save_file(on_host, directory / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(on_host, name)
        num_bytes += sum(tensor.nbytes for tensor in on_host.values())
    index_text = json.dumps({"metadata": {"total_size": num_bytes}, "weight_map": weight_map})
    (directory / "model.safetensors.index.json").write_text(index_text, encoding="utf-8")
    return num_bytes


def _published(config: Qwen3Config, layer: LayerWeights, prefix: str) -> dict[str, Tensor]:
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    sides = [f"{attention}{side}_proj" for side in "qkv"]
    qkv = torch.split(_dense(layer.qkv), [query, key, key])
    gate, up = _dense(layer.gate_up).chunk(2)
    named = {
        f"{prefix}input_layernorm.weight": layer.input_norm,
        f"{prefix}post_attention_layernorm.weight": layer.post_norm,
        f"{attention}q_norm.weight": layer.qk_norm[0],
        f"{attention}k_norm.weight": layer.qk_norm[-1],
        f"{attention}o_proj.weight": _dense(layer.out),
        f"{mlp}gate_proj.weight": gate,
        f"{mlp}up_proj.weight": up,
        f"{mlp}down_proj.weight": _dense(layer.down),
        **{f"{side}.weight": part for side, part in zip(sides, qkv, strict=True)},
    }
    if layer.qkv_bias is not None and layer.out_bias is not None:
        biases = torch.split(layer.qkv_bias, [query, key, key])
        named |= {f"{side}.bias": part for side, part in zip(sides, biases, strict=True)}
        named[f"{attention}o_proj.bias"] = layer.out_bias
    return named


def _dense(weight: object) -> Tensor:
    if not isinstance(weight, Tensor):
        raise TypeError("a drawn weight is dense")
    return weight
