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

_LATENT: dict[str, Any] = {
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 20,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "num_nextn_predict_layers": 0,
}
"""Heads of 12 + 8 dimensions whose keys and values are made of latents."""

_GEMMA4: dict[str, Any] = {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 20,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "num_hidden_layers": 4,
    "final_logit_softcapping": 8.0,
}
"""Heads of two sizes."""

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
    "gemma4": (
        "Gemma4TextConfig",
        {
            **_GEMMA4,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
        },
    ),
    "gemma4_unified": (
        "Gemma4UnifiedTextConfig",
        {**_GEMMA4, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
    ),
    "gemma4-experts": (
        "Gemma4TextConfig",
        {
            **_GEMMA4,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 40,
        },
    ),
    "gemma4-e": (
        "Gemma4TextConfig",
        {
            **_GEMMA4,
            "hidden_size_per_layer_input": 24,
            "vocab_size_per_layer_input": 151,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
        },
    ),
    "glm4_moe_lite": (
        "Glm4MoeLiteConfig",
        {
            **_LATENT,
            "q_lora_rank": 24,
            "n_routed_experts": 6,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            **_LATENT,
            "q_lora_rank": None,
            "v_head_dim": 12,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
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
                if "norm" in name or name.endswith("scale"):
                    weight.add_(torch.randn_like(weight) * 0.2)
                elif name.endswith(("A_log", "dt_bias")):
                    # Heads that forget at once, and heads that hardly do.
                    weight.copy_(torch.randn_like(weight))
                elif "conv1d" in name:
                    weight.copy_(torch.randn_like(weight))
                else:
                    weight.copy_(torch.randn_like(weight) * 0.2)
            for name, buffer in model.named_buffers():
                if name.endswith("layer_scalar"):
                    buffer.uniform_(0.5, 1.2)
                elif name.endswith("e_score_correction_bias"):
                    buffer.uniform_(-0.2, 0.2)
    model.save_pretrained(model_dir)
    return model_dir
