"""Models in 4 bits: made at load, or read from the formats of the field; the rest is refused.

Each format is written from the same integers, scales and zero points. What is read must be those
numbers exactly, and the model must answer as one in float32 of the very same weights.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.int4 import Int4Weight, in_order
from protocol.errors import ConfigError
from tests.fakes.int4_files import (
    AWQ,
    FORMATS,
    GPTQ,
    PACKED,
    ROUND,
    SHAPE,
    SORTED,
    WEIGHTS,
    greedy,
    twins,
)
from tests.fakes.tiny_models import load_tiny, write_tiny_model


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_read_exactly_and_answer_as_their_numbers(tmp_path: Path, name: str) -> None:
    small, large = twins(tmp_path, name)
    runner, exact = load_tiny(small), load_tiny(large)
    assert runner.facts.dtype == "float32+int4"
    for layer, wanted in zip(runner.model.weights.layers, exact.model.weights.layers, strict=True):
        for part in ("qkv", "out", "gate_up", "down"):
            weight = getattr(layer, part)
            assert isinstance(weight, Int4Weight)
            assert (weight.zeros is None) == ("symmetric" in name)
            assert (weight.order is None) == ("sorted" not in name)
            assert torch.equal(in_order(weight, torch.float32), getattr(wanted, part))
    assert greedy(runner) == greedy(exact)


def test_layers_are_quantised_at_load_and_nothing_else(tmp_path: Path) -> None:
    """A matrix whose columns no group divides stays as it is."""
    model_dir = write_tiny_model(tmp_path, **SHAPE | {"intermediate_size": 200})
    runner, exact = load_tiny(model_dir, quantization="int4"), load_tiny(model_dir)
    weights, before = runner.model.weights, exact.model.weights
    assert runner.facts.dtype == "float32+int4"
    assert torch.equal(weights.embedding, before.embedding)
    for layer, was in zip(weights.layers, before.layers, strict=True):
        assert torch.equal(layer.down, was.down)
        for part in ("qkv", "out", "gate_up"):
            weight, dense = getattr(layer, part), getattr(was, part)
            assert isinstance(weight, Int4Weight)
            assert weight.nbytes < dense.nbytes / 6
            error = in_order(weight, torch.float32) - dense
            assert 0.01 < float(error.norm() / dense.norm()) < 0.12


REFUSED: list[tuple[dict[str, Any], str]] = [
    (AWQ | {"bits": 8}, "8 bits"),
    (AWQ | {"version": "marlin"}, "marlin"),
    (GPTQ | {"checkpoint_format": "marlin"}, "marlin"),
    (ROUND | {"packing_format": "auto_round:llm_compressor"}, "auto-round"),
    ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
    (PACKED | {"config_groups": {"g": {"weights": WEIGHTS | {"num_bits": 8}}}}, "compressed"),
]


@pytest.mark.parametrize(("stated", "word"), REFUSED)
def test_what_is_missing_is_named(tmp_path: Path, stated: dict[str, Any], word: str) -> None:
    model_dir = write_tiny_model(tmp_path, **SHAPE, quantization_config=stated)
    with pytest.raises(ConfigError, match=word) as caught:
        load_tiny(model_dir)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_in_four_bits_is_not_quantised_again(tmp_path: Path) -> None:
    """What a worker asks for has to fit what there is."""
    small, _ = twins(tmp_path, "gptq")
    with pytest.raises(ConfigError, match="in 4 bits already"):
        load_tiny(small, quantization="int4")


MLX = {"group_size": 64, "bits": 4, "mode": "affine"}
FLOAT4 = {"num_bits": 4, "type": "float", "group_size": 16}


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        (MLX, "MLX"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt, NVFP4"),
        (
            PACKED
            | {"format": "nvfp4-pack-quantized", "config_groups": {"g": {"weights": FLOAT4}}},
            "compressed-tensors, nvfp4-pack-quantized, weights of 4 bits float",
        ),
    ],
)
def test_a_format_is_named_as_its_makers_call_it(
    tmp_path: Path, stated: dict[str, Any], words: str
) -> None:
    """One method has many formats, and MLX names no method."""
    model_dir = write_tiny_model(tmp_path, **SHAPE, quantization_config=stated)
    with pytest.raises(ConfigError, match=re.escape(f"of this kind ({words}) are not supported")):
        load_tiny(model_dir)


def _packed(**more: Any) -> dict[str, Any]:
    return PACKED | {"config_groups": {"g": {"targets": ["Linear"], "weights": WEIGHTS | more}}}


@pytest.mark.parametrize(
    ("name", "stated", "lost"),
    [
        ("gptq sorted", SORTED, "g_idx"),
        ("packed", _packed(symmetric=False), "weight_zero_point"),
        ("packed sorted", _packed(actorder="group"), "weight_g_idx"),
    ],
)
def test_what_a_configuration_promises_is_there(
    name: str, stated: dict[str, Any], lost: str, tmp_path: Path
) -> None:
    """Without the order or the zero points the numbers were read as others."""
    small, large = twins(tmp_path, name)
    path = small / "config.json"
    raw = json.loads(path.read_bytes()) | {"quantization_config": stated}
    path.write_text(json.dumps(raw))
    assert greedy(load_tiny(small)) == greedy(load_tiny(large))
    tensors = load_file(small / "model.safetensors")
    module = "model.layers.1.mlp.down_proj"
    del tensors[f"{module}.{lost}"]
    save_file(tensors, small / "model.safetensors")
    with pytest.raises(ConfigError, match=rf"has no {module}\.{lost}, which its quantization"):
        load_tiny(small)


def test_scales_of_keys_and_values_beside_four_bits_are_left_out(tmp_path: Path) -> None:
    small, large = twins(tmp_path, "packed")
    path = small / "config.json"
    raw = json.loads(path.read_bytes())
    raw["quantization_config"]["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    path.write_text(json.dumps(raw))
    tensors = load_file(small / "model.safetensors")
    tensors["model.layers.0.self_attn.k_scale"] = torch.ones(1)
    save_file(tensors, small / "model.safetensors")
    assert greedy(load_tiny(small)) == greedy(load_tiny(large))
