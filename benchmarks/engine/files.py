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

from benchmarks.engine.vocabulary import write_vocabulary
from config import DUMMY_PREFIX
from workers.engine.models.description import Attention, DeltaRule, ModelDescription
from workers.engine.models.dummy import draw_weights
from workers.engine.models.model_config import read_model_config
from workers.engine.models.weights import LayerWeights
from workers.model_dir import CONFIG_NAME, dummy_dir

LAYERS_PER_FILE: Final = 8
"""3 GB of an 8B: files of the usual size, which bound the memory used."""


def write_checkpoint(shape: str, directory: Path, device: torch.device, dtype: torch.dtype) -> int:
    """Write config.json, tokenizer.json, safetensors files and their index. Returns the bytes of
    all tensors.

    `shape` is the name of an installed shape or a directory with config.json. Raises `ConfigError`.
    """
    home = dummy_dir(f"{DUMMY_PREFIX}{shape}")
    shutil.copy(home / CONFIG_NAME, directory / CONFIG_NAME)
    config = read_model_config(home)
    write_vocabulary(directory, config.vocab_size, config.vocab_size - 1)
    weights = draw_weights(config, device, dtype)
    prefix = config.names.prefixes[0]
    norm = _stored(config, weights.norm)
    outer = {f"{prefix}embed_tokens.weight": weights.embedding, f"{prefix}norm.weight": norm}
    if not config.tied:
        outer[f"{config.names.head}.weight"] = weights.head
    weight_map: dict[str, str] = {}
    num_bytes = 0
    for first in range(-LAYERS_PER_FILE, config.num_layers, LAYERS_PER_FILE):
        tensors = outer if first < 0 else {}
        for index in range(max(0, first), min(first + LAYERS_PER_FILE, config.num_layers)):
            tensors |= _published(config, index, weights.layers[index])
        name = f"model-{first + LAYERS_PER_FILE:05}.safetensors"
        on_host = {key: tensor.cpu().contiguous() for key, tensor in tensors.items()}
        save_file(on_host, directory / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(on_host, name)
        num_bytes += sum(tensor.nbytes for tensor in on_host.values())
    index_text = json.dumps({"metadata": {"total_size": num_bytes}, "weight_map": weight_map})
    (directory / "model.safetensors.index.json").write_text(index_text, encoding="utf-8")
    return num_bytes


def _published(config: ModelDescription, index: int, layer: LayerWeights) -> dict[str, Tensor]:
    names, mixer = config.names, config.layers[index].mixer
    prefix = f"{names.prefixes[0]}layers.{index}."
    gate_up = _dense(layer.gate_up).chunk(len(names.gate_up))
    if isinstance(mixer, DeltaRule):
        named = _delta(config, mixer, layer)
    else:
        named = _attention(config, mixer, layer)
    named |= {
        f"{names.down}.weight": _dense(layer.down),
        **{f"{name}.weight": part for name, part in zip(names.gate_up, gate_up, strict=True)},
    }
    norms = {
        names.mixer_norm: layer.input_norm,
        names.mixer_out_norm: layer.mixer_out_norm,
        names.mlp_norm: layer.mlp_norm,
        names.mlp_out_norm: layer.mlp_out_norm,
        names.q_norm: None if layer.qk_norm is None else layer.qk_norm[0],
        names.k_norm: None if layer.qk_norm is None else layer.qk_norm[-1],
    }
    for name, norm in norms.items():
        if norm is not None:
            named[f"{name}.weight"] = _stored(config, norm)
    return {prefix + name: tensor for name, tensor in named.items()}


def _attention(
    config: ModelDescription, mixer: Attention, layer: LayerWeights
) -> dict[str, Tensor]:
    """Projections of attention. A partly rotated head keeps its order of rows: random weights need
    no other.
    """
    names, qkv = config.names, _dense(layer.qkv)
    query, key = mixer.query_size, mixer.num_kv_heads * mixer.head_dim
    if layer.gate is not None:
        halves = [
            part.unflatten(0, (-1, mixer.head_dim)) for part in (qkv[:query], _dense(layer.gate))
        ]
        qkv = torch.cat((torch.cat(halves, dim=1).flatten(0, 1), qkv[query:]))
        query *= 2
    sides = [query, key, key] if len(names.qkv) > 1 else [query + 2 * key]
    named = {
        f"{names.out}.weight": _dense(layer.out),
        **{
            f"{name}.weight": part
            for name, part in zip(names.qkv, torch.split(qkv, sides), strict=True)
        },
    }
    if layer.qkv_bias is not None:
        biases = torch.split(layer.qkv_bias, sides)
        named |= {f"{name}.bias": part for name, part in zip(names.qkv, biases, strict=True)}
    if layer.out_bias is not None:
        named[f"{names.out}.bias"] = layer.out_bias
    return named


def _delta(config: ModelDescription, mixer: DeltaRule, layer: LayerWeights) -> dict[str, Tensor]:
    assert layer.delta is not None
    sizes, at = mixer.sizes, f"{config.names.delta}."
    qkv, z = _dense(layer.qkv).split([sizes.columns, sizes.value_columns])
    b, a = _dense(layer.gate).chunk(2)
    return {
        f"{at}in_proj_qkv.weight": qkv,
        f"{at}in_proj_z.weight": z,
        f"{at}in_proj_b.weight": b,
        f"{at}in_proj_a.weight": a,
        f"{at}out_proj.weight": _dense(layer.out),
        f"{at}conv1d.weight": layer.delta.conv.unsqueeze(1),
        f"{at}A_log": layer.delta.decay,
        f"{at}dt_bias": layer.delta.dt_bias,
        f"{at}norm.weight": layer.delta.norm,
    }


def _stored(config: ModelDescription, norm: Tensor) -> Tensor:
    """A norm as stored, without the constant that the family adds."""
    return norm - config.norm_offset


def _dense(weight: object) -> Tensor:
    if not isinstance(weight, Tensor):
        raise TypeError("a drawn weight is dense")
    return weight
