"""Tiny random Qwen3 models on disk, as Hugging Face writes them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from config import WorkerConfig
from workers.engine.load.report import Report
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner

TINY: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "dtype": "float32",
    "eos_token_id": 1,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 48,
    "intermediate_size": 96,
    "max_position_embeddings": 1024,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "vocab_size": 151,
}


def tiny_config(**changes: Any) -> dict[str, Any]:
    """config.json of the tiny model; a change to None removes the key."""
    merged = {**TINY, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The published names of all tensors of a Qwen3 dense model, with their shapes."""
    hidden, inner, head_dim = (config[k] for k in ("hidden_size", "intermediate_size", "head_dim"))
    query, key = (config[k] * head_dim for k in ("num_attention_heads", "num_key_value_heads"))
    vocabulary = (config["vocab_size"], hidden)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": vocabulary,
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = vocabulary
    for index in range(config["num_hidden_layers"]):
        attention = {"q": (query, hidden), "k": (key, hidden), "v": (key, hidden)}
        attention["o"] = (hidden, query)
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_norm.weight": (head_dim,),
            "self_attn.k_norm.weight": (head_dim,),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
        for side, shape in attention.items():
            layer[f"self_attn.{side}_proj.weight"] = shape
            if config["attention_bias"]:
                layer[f"self_attn.{side}_proj.bias"] = shape[:1]
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def random_tensors(config: dict[str, Any], *, std: float, seed: int = 0) -> dict[str, torch.Tensor]:
    """Seeded normal weights; norms around 1, so that their order of operations matters."""
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, config["dtype"])
    return {
        name: (torch.randn(shape, generator=generator) * std + ("norm" in name)).to(dtype)
        for name, shape in tensor_shapes(config).items()
    }


def write_tiny_model(
    model_dir: Path, *, shards: int = 1, std: float = 0.2, seed: int = 0, **changes: Any
) -> Path:
    """Write config.json and safetensors (several shards with an index) to `model_dir`."""
    config = tiny_config(**changes)
    model_dir.mkdir(parents=True, exist_ok=True)
    (model_dir / "config.json").write_text(json.dumps(config))
    tensors = random_tensors(config, std=std, seed=seed)
    if shards == 1:
        save_file(tensors, model_dir / "model.safetensors", metadata={"format": "pt"})
        return model_dir
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for index in range(shards):
        shard = f"model-{index + 1:05}-of-{shards:05}.safetensors"
        mine = names[index::shards]
        save_file({n: tensors[n] for n in mine}, model_dir / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(mine, shard)
    index_text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (model_dir / "model.safetensors.index.json").write_text(index_text)
    return model_dir


def _silent(_phase: str, _share: float, _text: str) -> None:
    """What most tests do with reports."""


def load_tiny(model_dir: Path, *, report: Report = _silent, **changes: Any) -> ModelRunner:
    """The runner of a tiny model on the CPU; `changes` are keys of the worker's configuration."""
    config = {
        "name": "tiny",
        "model": str(model_dir),
        "serves": "tiny",
        "gateways": (),
        "max_seqs": 8,
        "token_budget": 256,
        "device": "cpu",
        **changes,
    }
    return load_runner(WorkerConfig(**config), report)
