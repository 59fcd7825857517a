"""Tiny random models of the families that run, made and written by `transformers`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

_RECENT = {"InternLM3Config", "IQuestCoderConfig"}
"""Classes that transformers 5.17, as some images have it, lacks: such a model cannot be written."""

_SIZES: dict[str, Any] = {
    "vocab_size": 151,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}

_HYBRID: dict[str, Any] = {
    "head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
    "num_hidden_layers": 6,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 24,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
"""Layers of the delta rule and of attention."""

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2Config", {"head_dim": 12}),
    "qwen2-yarn": (
        "Qwen2Config",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen2-window": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "llama3": (
        "LlamaConfig",
        {
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "llama-biased": ("LlamaConfig", {"attention_bias": True, "num_key_value_heads": 4}),
    "mistral": ("MistralConfig", {"head_dim": 16, "sliding_window": 40}),
    "ministral3": (
        "Ministral3Config",
        {
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
    ),
    "seed_oss": ("SeedOssConfig", {"head_dim": 16, "attention_out_bias": True}),
    "internlm3": ("InternLM3Config", {"head_dim": 16}),
    "iquestcoder": ("IQuestCoderConfig", {"head_dim": 16}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "head_dim": 32,
            "num_hidden_layers": 4,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": ("Phi3Config", {"sliding_window": 50}),
    "phi4-mini": (
        "Phi3Config",
        {
            "tie_word_embeddings": True,
            "hidden_size": 64,
            "max_position_embeddings": 2048,
            "original_max_position_embeddings": 1024,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.1, 1.3, 2.0, 3.0, 4.0],
                "long_factor": [1.0, 2.0, 3.0, 5.0, 8.0, 9.0],
                "original_max_position_embeddings": 1024,
            },
        },
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3_moe-sparse": (
        "Qwen3MoeConfig",
        {
            "head_dim": 16,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "decoder_sparse_step": 2,
        },
    ),
    "qwen3_5_moe": (
        "Qwen3_5MoeTextConfig",
        {
            **_HYBRID,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 56,
        },
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        {
            **_HYBRID,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 40,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "mlp_only_layers": [1],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.25,
            },
        },
    ),
    "gpt_oss": (
        "GptOssConfig",
        {
            "head_dim": 16,
            "num_hidden_layers": 2,
            "intermediate_size": 40,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "sliding_window": 20,
            "swiglu_limit": 1.5,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 8.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen3_5": (
        "Qwen3_5TextConfig",
        {**_HYBRID},
    ),
}


def write_family(model_dir: Path, family: str, *, seed: int = 0, **changes: Any) -> Path:
    """Write a model of `FAMILIES`: normal weights, norms around their neutral value. Skips the
    test if this `transformers` is too old to have it.
    """
    config_class, features = FAMILIES[family]
    if config_class in _RECENT and not hasattr(transformers, config_class):
        pytest.skip(f"transformers {transformers.__version__} has no {config_class}")
    build: Callable[..., Any] = getattr(transformers, config_class)
    config = build(**{**_SIZES, **features, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith("norm.weight"):
                    weight.add_(torch.randn_like(weight) * 0.2)
                elif name.endswith(("A_log", "dt_bias")):
                    # Heads that forget at once, and heads that hardly do.
                    weight.copy_(torch.randn_like(weight))
                elif "conv1d" in name:
                    weight.copy_(torch.randn_like(weight))
                else:
                    weight.copy_(torch.randn_like(weight) * 0.2)
    model.save_pretrained(model_dir)
    return model_dir
