"""Heads of two sizes, borrowed keys, side inputs and latent attention in the engine: as on a card,
swapped, cached, quantised, and what is refused of them.
"""

import json
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.drive import fresh_runner
from kernels.fp8 import Fp8Weight, dequantise
from kernels.int4 import Int4Weight, in_order
from kernels.linear import Weight
from protocol.errors import ConfigError
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny
from tests.gpu_parity.logits import engine_logits
from tests.workers.engine.step_cases import (
    BLOCK,
    GREEDY,
    Life,
    as_on_card,
    plans_of_lives,
    sampled_by,
)
from workers.engine.graphs.capture import run_again
from workers.engine.models.model_config import read_model_config
from workers.engine.models.weights import with_products
from workers.engine.runner import ModelRunner
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan

FORMS = ("gemma4", "gemma4-experts", "gemma4-e", "glm4_moe_lite", "deepseek_v3")
MIXTURES = ("qwen3_moe", "gpt_oss", "qwen3_5_moe", "qwen3_next")
LATENT = ("glm4_moe_lite", "deepseek_v3")


def _load(model_dir: Path, **keys: Any) -> ModelRunner:
    return load_tiny(model_dir, kv_tokens=1024, block_size=BLOCK, token_budget=1024, **keys)


@pytest.mark.parametrize("family", [*FORMS, *MIXTURES])
def test_steps_as_on_a_card_say_the_same(tmp_path: Path, family: str) -> None:
    """Chunks of prompts beside decodes, padded to buckets, a step ahead; foreign slots are NaN."""
    host = _load(write_family(tmp_path, family))
    lives = [Life(0, 40, 20, GREEDY), Life(1, 7, 7, GREEDY), Life(3, 21, 64, GREEDY)]
    plans = plans_of_lives(lives, 9)
    expected = sampled_by(host, plans, ahead=0)
    host.run(StepPlan(99, (), (), (0, 1, 2)))
    assert sampled_by(as_on_card(host, run_again), plans, ahead=1) == expected


@pytest.mark.parametrize("family", LATENT)
def test_caches_behind_a_hit_are_those_of_a_cold_run(tmp_path: Path, family: str) -> None:
    """The second sequence finds the first 64 tokens of the first one, and computes the others in
    the same chunks: what both write of their prompts and decodes is the same bit for bit.
    """
    runner = fresh_runner(_load(write_family(tmp_path, family)))
    prompt = array("I", [2 + 7 * index % 149 for index in range(96)])
    for keys, _ in runner.cache.layers:
        keys.fill_(torch.nan)
    own = list(range(8)), [*range(4), *range(10, 14)]
    for seq, blocks in enumerate(own):
        begun = (SequenceStart(seq, prompt, len(prompt), GREEDY, seed=0),)
        done = 64 if seq else 0
        for length in (64, 32, 1, 1, 1)[seq:]:
            last = done + length >= len(prompt)
            chunk = Chunk(seq, done, length, tuple(blocks), samples=last)
            runner.run(StepPlan(0, begun, (chunk,), ()))
            begun, done = (), done + length
    for keys, _ in runner.cache.layers:
        first, second = (keys[blocks].flatten(0, 1)[:99] for blocks in own)
        assert not first.isnan().any()
        assert torch.equal(first, second)


@pytest.mark.parametrize("family", LATENT)
def test_the_cache_holds_the_latent_and_the_turned_key_alone(tmp_path: Path, family: str) -> None:
    """32 numbers and 8 of a token in each of three layers."""
    runner = _load(write_family(tmp_path, family))
    layers = runner.model.config.num_layers
    assert runner.model.config.token_numbers == layers * 40
    (memory,) = runner.cache.memories
    assert (memory.shape[0], memory.shape[1], *memory.shape[4:]) == (layers, 1, 1, 40)


def test_layers_that_borrow_have_no_memory(tmp_path: Path) -> None:
    """Two of four layers of two sizes make keys and values."""
    runner = _load(write_family(tmp_path, "gemma4-e"))
    assert runner.model.config.key_owners == (0, 1, 0, 1)
    assert [memory.shape[0] for memory in runner.cache.memories] == [1, 1]
    assert runner.cache.layers[2][0].data_ptr() == runner.cache.layers[0][0].data_ptr()


def _widened(weight: Weight) -> Weight:
    """The model with the same numbers in float32."""
    if isinstance(weight, Int4Weight):
        return in_order(weight, torch.float32)
    return dequantise(weight, torch.float32) if isinstance(weight, Fp8Weight) else weight


@pytest.mark.parametrize("family", FORMS)
@pytest.mark.parametrize("form", ["fp8", "int4"])
def test_products_in_fewer_bits_answer_as_the_same_numbers(
    tmp_path: Path, family: str, form: str
) -> None:
    """Products in fewer bits whose columns a group divides answer as the same numbers in float32;
    what makes keys of latents stays in 16 bits.
    """
    wide: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 128}
    runner = _load(write_family(tmp_path, family, **wide), quantization=form)
    prompts, weights = [[2 + 7 * index % 149 for index in range(60)]], runner.model.weights
    found = torch.cat(engine_logits(fresh_runner(runner), prompts))
    layers = tuple([with_products(layer, _widened) for layer in weights.layers])
    assert any(one.qkv is not other.qkv for one, other in zip(layers, weights.layers, strict=True))
    runner.model.weights = replace(weights, layers=layers)
    exact = torch.cat(engine_logits(fresh_runner(runner), prompts))
    torch.testing.assert_close(found, exact, atol=1e-3, rtol=0)


def _said(model_dir: Path, **changes: Any) -> str:
    """The line for a config.json that says something else."""
    path = model_dir / "config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))
    with pytest.raises(ConfigError) as caught:
        read_model_config(model_dir)
    return str(caught.value)


@pytest.mark.parametrize(
    ("family", "changes", "line"),
    [
        ("gemma4", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all'"),
        ("gemma4", {"use_bidirectional_attention": ["vision"]}, "use_bidirectional_attention = ["),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq = 2 is not supported"),
        ("gemma4", {"hidden_activation": "silu"}, "hidden_activation = 'silu' is not supported"),
        ("gemma4", {"attention_bias": True}, "attention_bias = True is not supported"),
        ("gemma4-experts", {"top_k_experts": 7}, "top_k_experts is 7 of 6 experts"),
        ("gemma4-e", {"num_kv_shared_layers": 3}, "leaves no full_attention with keys of its own"),
        ("deepseek_v3", {"topk_method": "greedy"}, "topk_method = 'greedy' is not supported"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func = 'softmax' is not supported"),
        ("deepseek_v3", {"topk_group": 1}, "3 of 8 experts in 4 groups of which 1 compete"),
        ("deepseek_v3", {"model_type": "kimi_k2"}, "Kimi K2"),
        ("deepseek_v3", {"model_type": "deepseek_v32"}, "chooses keys by an index"),
    ],
)
def test_what_is_not_understood_is_named(
    tmp_path: Path, family: str, changes: dict[str, Any], line: str
) -> None:
    """Each in one line."""
    assert line in _said(write_family(tmp_path, family), **changes)


def test_published_files_are_read_as_newer_exports(tmp_path: Path) -> None:
    """Sizes of global heads by their own keys, the text model within one with towers, and keys of
    layers that borrow, which no layer reads.
    """
    model_dir = write_family(tmp_path / "model", "gemma4-e")
    exact = _load(model_dir)
    config = json.loads((model_dir / "config.json").read_bytes())
    del config["per_layer_config"]
    config["global_head_dim"] = 32
    outer = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "text_config": config,
        "vision_config": {},
    }
    other = tmp_path / "published"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(outer))
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(model_dir / "model.safetensors").items()
    }
    tensors["model.vision_tower.patch.weight"] = torch.zeros(2)
    tensors["model.language_model.layers.3.self_attn.k_proj.weight"] = torch.zeros(64, 48)
    tensors["model.language_model.layers.3.self_attn.k_norm.weight"] = torch.zeros(32)
    save_file(tensors, other / "model.safetensors")
    prompts = [[5, 9, 2] * 12]
    wanted = engine_logits(fresh_runner(exact), prompts)
    for found, right in zip(
        engine_logits(fresh_runner(_load(other)), prompts), wanted, strict=True
    ):
        assert torch.equal(found, right)
