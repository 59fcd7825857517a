"""What a config.json leaves out, or says in a way of its own, means what it means to
transformers.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from benchmarks.drive import fresh_runner
from protocol.errors import ConfigError
from tests.fakes.tiny_families import FAMILIES, write_family
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.gpu_parity.logits import engine_logits
from workers.engine.models.description import Attention, ModelDescription
from workers.engine.models.model_config import read_model_config

PROMPT = [(7 * at * at + 3 * at) % 149 + 2 for at in range(150)]
SIZES = (
    "attention_bias",
    "attention_out_bias",
    "first_k_dense_replace",
    "global_head_dim",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "hidden_size",
    "intermediate_size",
    "kv_lora_rank",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "max_position_embeddings",
    "moe_intermediate_size",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "norm_topk_prob",
    "num_attention_heads",
    "num_experts_per_tok",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_kv_shared_layers",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "query_pre_attn_scalar",
    "rms_norm_eps",
    "routed_scaling_factor",
    "shared_expert_intermediate_size",
    "sliding_window",
    "swiglu_limit",
    "tie_word_embeddings",
    "topk_group",
    "v_head_dim",
    "vocab_size",
    "vocab_size_per_layer_input",
)
TYPES = sorted({config_class for config_class, _ in FAMILIES.values()})


def changed(folder: Path, **changes: Any) -> Path:
    """The model with these keys; "no" takes one away."""
    path = folder / "config.json"
    raw = {**json.loads(path.read_bytes()), **changes}
    path.write_text(json.dumps({key: value for key, value in raw.items() if value != "no"}))
    return folder


def described(folder: Path, raw: dict[str, Any]) -> ModelDescription:
    (folder / "config.json").write_text(json.dumps(raw))
    return read_model_config(folder)


def assert_equal(folder: Path) -> None:
    """Logits of the folder's model are those of transformers."""
    runner = load_tiny(folder, context_length=512)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference.eval()(torch.tensor([PROMPT])).logits[0]
    found = engine_logits(fresh_runner(runner), [PROMPT])[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("config_class", TYPES)
def test_a_size_that_is_not_stated_is_that_of_transformers(
    config_class: str, tmp_path: Path
) -> None:
    """Each key alone is left out of the file of a model that has its default."""
    if not hasattr(transformers, config_class):
        pytest.skip(f"transformers {transformers.__version__} has no {config_class}")
    default = getattr(transformers, config_class)().to_dict()
    default["architectures"] = None
    whole = described(tmp_path, default)
    for key in SIZES:
        if default.get(key) is not None:
            raw = {name: value for name, value in default.items() if name != key}
            assert msgspec.to_builtins(described(tmp_path, raw)) == msgspec.to_builtins(whole), key


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen2-yarn", {"original_max_position_embeddings": 256}),
        ("llama3", {"original_max_position_embeddings": 256}),
        ("gpt_oss", {"original_max_position_embeddings": 256}),
        ("qwen2-window", {"max_window_layers": 0, "layer_types": "no"}),
        ("qwen2-window", {"sliding_window": None, "layer_types": "no"}),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
        ("llama3", {"hidden_act": "swish"}),
        ("llama3", {"hidden_act": "gelu_new"}),
        ("qwen3_moe", {"hidden_act": "swish"}),
        ("gemma3", {"hidden_activation": "gelu_fast"}),
        ("gemma3", {"final_logit_softcapping": 8.0}),
        ("ministral3", {"rope_parameters": None, "rope_theta": 500.0}),
    ],
)
def test_what_is_said_oddly_is_read_as_transformers_reads_it(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    assert_equal(changed(write_family(tmp_path, family), **changes))


def test_a_stated_factor_of_longrope_counts(tmp_path: Path) -> None:
    """And not the ratio of the two windows."""
    path = write_family(tmp_path, "phi4-mini") / "config.json"
    rope = {**json.loads(path.read_bytes())["rope_parameters"], "factor": 8.0}
    assert_equal(changed(tmp_path, rope_parameters=rope))


def test_a_window_of_ministral_grows_from_the_one_beside_the_rotation(tmp_path: Path) -> None:
    changed(write_family(tmp_path, "ministral3"), original_max_position_embeddings=64)
    assert_equal(tmp_path)


@pytest.mark.parametrize("where", ["file", "rotation"])
@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3_moe", "gemma3", "gpt_oss"])
def test_a_share_that_engines_read_differently_is_refused(
    family: str, where: str, tmp_path: Path
) -> None:
    """transformers turns whole heads of these families, or fails; others turn a part."""
    path = write_family(tmp_path, family) / "config.json"
    rope = json.loads(path.read_bytes())["rope_parameters"]
    share = {"partial_rotary_factor": 0.5}
    if where == "file":
        changed(tmp_path, **share)
    elif family == "gemma3":
        changed(tmp_path, rope_parameters={kind: {**own, **share} for kind, own in rope.items()})
    else:
        changed(tmp_path, rope_parameters={**rope, **share})
    with pytest.raises(ConfigError, match=r"partial_rotary_factor = 0.5 in this family is not"):
        read_model_config(tmp_path)
    changed(tmp_path, rope_parameters=rope, partial_rotary_factor=1.0)
    read_model_config(tmp_path)


def test_a_null_window_of_a_dense_model_is_none(tmp_path: Path) -> None:
    raw = transformers.Qwen2Config().to_dict() | {"use_sliding_window": True, "layer_types": None}
    windows = {
        layer.mixer.window
        for layer in described(tmp_path, raw | {"sliding_window": None}).layers
        if isinstance(layer.mixer, Attention)
    }
    assert windows == {0}


def test_two_models_in_a_directory_are_named(tmp_path: Path) -> None:
    """transformers reads the one file and vLLM those of the index."""
    write_tiny_model(tmp_path, shards=2)
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"model\.safetensors\.index\.json, which names other"):
        load_tiny(tmp_path)


def test_an_index_of_the_one_file_is_read(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path) / "model.safetensors"
    names = dict.fromkeys(load_file(path), path.name)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    load_tiny(tmp_path)
