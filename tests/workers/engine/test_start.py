"""A model directory is loaded whole, or refused in one line that names the file and the remedy."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from protocol.errors import ConfigError
from tests.fakes.tiny_models import load_tiny, tiny_config, write_tiny_model
from workers.engine.model_source import find_model
from workers.engine.models.model_config import read_model_config

INDEX = "model.safetensors.index.json"
SECOND = "model-00002-of-00003.safetensors"


def _rewrite(path: Path, **changes: Any) -> None:
    tensors = load_file(path)
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name.replace("__", ".")]
        else:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, path, metadata={"format": "pt"})


def _refusal(model_dir: Path, **config: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_tiny(model_dir, **config)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_progress_is_reported_and_facts_are_measured(tmp_path: Path) -> None:
    """Facts name the device, the dtype, and a window that the blocks and the model can hold."""
    runner = load_tiny(write_tiny_model(tmp_path), kv_tokens=100, context_length=1024)
    facts = runner.facts
    assert (facts.kind, facts.device, facts.dtype) == ("native", "cpu", "float32")
    assert (facts.kv_tokens, facts.context_length, facts.block_size) == (128, 128, 32)
    assert runner.eos_ids == {1}
    assert runner.model_dir == tmp_path


def test_the_window_is_the_smallest_of_all_limits(tmp_path: Path) -> None:
    """The model's positions, the configuration, then a few windows of memory at the most."""
    model_dir = write_tiny_model(tmp_path)
    assert load_tiny(model_dir).facts.context_length == 1024
    facts = load_tiny(model_dir, context_length=500).facts
    assert facts.context_length == 500
    assert facts.kv_tokens == 4 * 512
    assert load_tiny(model_dir, max_context=600).facts.context_length == 600
    assert load_tiny(model_dir, max_context=600, context_length=700).facts.context_length == 700
    assert load_tiny(model_dir, max_context=4000).facts.context_length == 1024
    assert "at most 1024" in _refusal(model_dir, context_length=4000)


@pytest.mark.parametrize("tokens", [1, 7])
def test_a_window_without_room_for_the_first_request_is_refused(
    tmp_path: Path, tokens: int
) -> None:
    """A window without room for the first request is refused: such an engine would start again and
    again, and never say why.
    """
    model_dir = write_tiny_model(tmp_path)
    assert "context_length to at least 8" in _refusal(model_dir, context_length=tokens)
    assert load_tiny(model_dir, context_length=8).facts.context_length == 8


def test_more_keys_and_values_than_memory_are_refused(tmp_path: Path) -> None:
    """The line says how much would fit."""
    text = _refusal(write_tiny_model(tmp_path), kv_tokens=2**31 - 1)
    assert "iB of memory are missing" in text
    assert "lower kv_tokens to at most" in text


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
    ],
)
def test_every_spelling_of_the_rope_base_is_read(tmp_path: Path, rope: dict[str, Any]) -> None:
    """transformers 4 and 5 write it in different places."""
    assert read_model_config(write_tiny_model(tmp_path, **rope)).attention.rope.theta == 5e5


def test_a_tied_model_may_have_a_head_of_its_own(tmp_path: Path) -> None:
    """transformers uses it too; a copy of the embedding takes no memory."""
    model_dir = write_tiny_model(tmp_path, tie_word_embeddings=True)
    path = model_dir / "model.safetensors"
    tensors = load_file(path)
    embedding = tensors["model.embed_tokens.weight"]
    for head, is_own in ((embedding.clone(), False), (embedding * 2, True)):
        save_file(tensors | {"lm_head.weight": head}, path)
        weights = load_tiny(model_dir).model.weights
        assert (weights.head is not weights.embedding) == is_own
        assert torch.equal(weights.head, head)


def test_generation_config_decides_what_ends_a_turn(tmp_path: Path) -> None:
    """The generation config decides what ends a turn: its ids, one or several, go before those of
    config.json.
    """
    model_dir = write_tiny_model(tmp_path)
    (model_dir / "generation_config.json").write_text('{"eos_token_id": [5, 9]}')
    assert read_model_config(model_dir).eos_ids == {5, 9}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": None, "model_type": "mamba"}, "mamba"),
        ({"architectures": "Qwen3ForCausalLM"}, "architectures"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "linear"}}, "factor"),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor"),
        ({"use_sliding_window": True, "sliding_window": "wide"}, "sliding_window"),
        ({"use_sliding_window": True, "layer_types": ["full_attention", "chunked"]}, "chunked"),
        ({"use_sliding_window": True, "layer_types": ["full_attention"]}, "layer_types"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantised"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_key_value_heads": 3}, "heads"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"eos_token_id": "<eos>"}, "eos_token_id"),
    ],
)
def test_models_that_we_cannot_run_are_refused(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    """The line names config.json and what in it is not supported."""
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(**changes)))
    text = _refusal(tmp_path)
    assert "config.json" in text
    assert named in text


@pytest.mark.parametrize("content", [None, "{", "[1]", "\udcff"])
def test_an_unreadable_config_is_refused(tmp_path: Path, content: str | None) -> None:
    """Missing, cut off, not an object, not UTF-8: the line names the file."""
    if content is not None:
        (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    assert "config.json" in _refusal(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    """The index names three files and one of them is not there."""
    model_dir = write_tiny_model(tmp_path, shards=3)
    (model_dir / SECOND).unlink()
    text = _refusal(model_dir)
    assert SECOND in text
    assert "fetch the model again" in text


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    """A directory without weights, neither an index nor the single file, is refused."""
    model_dir = write_tiny_model(tmp_path)
    (model_dir / "model.safetensors").unlink()
    assert "model.safetensors does not exist" in _refusal(model_dir)


@pytest.mark.parametrize("length", [0, 7, 100, 20_000])
def test_a_truncated_file_is_named(tmp_path: Path, length: int) -> None:
    """An interrupted download: empty, cut in the header, cut in the data."""
    path = write_tiny_model(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    assert "model.safetensors" in _refusal(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    """A missing tensor is named, in a single file, and in a shard whose index promises it."""
    name = "model.layers.1.mlp.up_proj.weight"
    single = write_tiny_model(tmp_path / "single")
    _rewrite(single / "model.safetensors", **{name: None})
    assert name in _refusal(single)
    sharded = write_tiny_model(tmp_path / "sharded", shards=3)
    shard = json.loads((sharded / INDEX).read_text())["weight_map"][name]
    _rewrite(sharded / shard, **{name: None})
    text = _refusal(sharded)
    assert name in text
    assert shard in text


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    """A tensor of another shape is named, with both shapes in the line."""
    model_dir = write_tiny_model(tmp_path)
    (model_dir / "config.json").write_text(json.dumps(tiny_config(intermediate_size=100)))
    text = _refusal(model_dir)
    assert "mlp.gate_proj.weight" in text
    assert "[96, 48]" in text
    assert "[100, 48]" in text


def test_a_tensor_that_nothing_explains_is_refused(tmp_path: Path) -> None:
    """Biases without attention_bias: to ignore them would be to run another model."""
    model_dir = write_tiny_model(tmp_path, attention_bias=True)
    (model_dir / "config.json").write_text(json.dumps(tiny_config()))
    assert "q_proj.bias" in _refusal(model_dir) or "k_proj.bias" in _refusal(model_dir)


def test_an_index_must_not_leave_the_directory(tmp_path: Path) -> None:
    """A shard is a file beside the index, nothing else."""
    model_dir = write_tiny_model(tmp_path)
    (model_dir / INDEX).write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    assert "../secret.safetensors" in _refusal(model_dir)


def test_a_missing_card_is_refused(tmp_path: Path) -> None:
    """The line names the key to change."""
    model_dir = write_tiny_model(tmp_path)
    assert "device" in _refusal(model_dir, device="cuda:93")


def test_a_torch_without_cuda_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another device does not help there: the line says what to install."""
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA: install" in _refusal(write_tiny_model(tmp_path), device="cuda:0")


def test_a_path_that_does_not_exist_is_no_hub_id() -> None:
    """A typing error in a path must not become a request to a hub."""
    with pytest.raises(ConfigError, match="neither a directory, nor a hub id"):
        find_model("/no/such/directory", lambda *_: None)
