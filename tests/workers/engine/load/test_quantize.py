"""Models in 8 bits: made at load, or read from the checkpoints of the field; the rest is refused.

The rule for logits: e4m3 moves a weight by 2^-4 of itself at most (`tests/kernels/test_fp8.py`), as
good as at random, by 2.7 % on average. How that grows through a network is the network's affair:
each factor of a branch adds its own part, and what a branch reads wrongly enters both factors of a
gate. So the bound is measured on the same network with every weight of a layer's products moved by
all of 2^-4, up or down at random: 8 bits must do less harm. The same holds for keys and values.
"""

import json
import re
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernels.fp8 import BLOCK, FP8, Fp8Weight
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.kernels.linear_cases import by_block, by_row, wide
from workers.engine.load.quantize import StoredFormat
from workers.engine.models.dummy import draw_weights
from workers.engine.models.model_config import read_model_config
from workers.engine.models.weights import quantised
from workers.engine.runner import ModelRunner
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan

SHAPE: dict[str, Any] = {
    "hidden_size": 160,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "attention_bias": True,
}
"""Matrices of 128, 160 and 256 rows and columns: blocks that are not full, but not inside a merged
matrix."""

BY_BLOCK = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
CHANNELS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
STATIC = {"num_bits": 8, "dynamic": False}
BY_ROW = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": CHANNELS,
            "input_activations": {"num_bits": 8, "strategy": "token", "dynamic": True},
        }
    },
    "ignore": ["lm_head"],
}
BLOCKS = CHANNELS | {"strategy": "block", "block_structure": [128, 128]}
BY_PACKED_BLOCK = BY_ROW | {
    "config_groups": {"group_0": BY_ROW["config_groups"]["group_0"] | {"weights": BLOCKS}}
}
"""As llm-compressor writes blocks (sglang#28132)."""

BY_TENSOR = BY_BLOCK | {"weight_block_size": None, "activation_scheme": "static"}
WHOLE = CHANNELS | {"strategy": "tensor"}
BY_PACKED_TENSOR = BY_ROW | {
    "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": WHOLE, "input_activations": STATIC}
    }
}


def _logits(runner: ModelRunner) -> Tensor:
    """The logits of all positions of one prompt."""
    ids = array("I", range(2, 50))
    start = SequenceStart(0, ids, len(ids), SamplingParams(max_tokens=1), seed=0)
    plan = StepPlan(0, (start,), (Chunk(0, 0, len(ids), (0, 1), samples=False),), ended=())
    ((_, hidden),) = runner.hidden(plan)
    with torch.inference_mode():
        return runner.model.logits(hidden).double()


def _error(runner: ModelRunner, exact: ModelRunner) -> float:
    expected = _logits(exact)
    return float((_logits(runner) - expected).norm() / expected.norm())


def quantised_twins(tmp_path: Path, stated: dict[str, Any], **shape: Any) -> tuple[Path, Path]:
    """A checkpoint in 8 bits, and one in float32 of the very same weights."""
    small, large = tmp_path / "small", tmp_path / "large"
    write_tiny_model(small, **SHAPE | shape, quantization_config=stated)
    write_tiny_model(large, **SHAPE | shape)
    stored, dense = {}, {}
    for name, tensor in load_file(small / "model.safetensors").items():
        stored[name] = dense[name] = tensor
        if not name.endswith("_proj.weight"):
            continue
        if stated in (BY_TENSOR, BY_PACKED_TENSOR):
            scale = tensor.abs().max() / 448
            stored[name] = (tensor / scale).to(FP8)
            dense[name] = stored[name].float() * scale
            stored[name + "_scale"] = scale if stated is BY_TENSOR else scale.view(1)
            stored[name.removesuffix("weight") + "input_scale"] = torch.tensor(0.5)
        else:
            weight = (by_row if stated is BY_ROW else by_block)(tensor)
            stored[name], dense[name] = weight.values, wide(weight).float()
            if stated is BY_BLOCK:
                stored[name + "_scale_inv"] = weight.scales
            elif stated is BY_PACKED_BLOCK:
                stored[name + "_scale"] = weight.scales.bfloat16().float()
                scaled = Fp8Weight(weight.values, stored[name + "_scale"])
                dense[name] = wide(scaled).float()
            else:
                stored[name + "_scale"] = weight.scales[:, None].contiguous()
    save_file(stored, small / "model.safetensors")
    save_file(dense, large / "model.safetensors")
    return small, large


def test_layers_are_quantised_at_load_and_nothing_else(tmp_path: Path) -> None:
    """Facts tell; the layers' matrices take a quarter of float32's bytes."""
    model_dir = write_tiny_model(tmp_path, **SHAPE)
    runner, exact = load_tiny(model_dir, quantization="fp8"), load_tiny(model_dir)
    assert runner.facts.dtype == "float32+fp8"
    assert exact.facts.dtype == "float32"
    weights = runner.model.weights
    assert torch.equal(weights.embedding, exact.model.weights.embedding)
    assert weights.head.dtype == weights.norm.dtype == torch.float32
    for layer, before in zip(weights.layers, exact.model.weights.layers, strict=True):
        for name in ("qkv", "out", "gate_up", "down"):
            weight = getattr(layer, name)
            assert isinstance(weight, Fp8Weight)
            assert not weight.is_blocked
            assert weight.values.nbytes * 4 == getattr(before, name).nbytes
        assert layer.qkv_bias is not None
        assert layer.qkv_bias.dtype == torch.float32
    assert weights.num_bytes() < exact.model.weights.num_bytes() / 2


@pytest.mark.parametrize("changes", [{"quantization": "fp8"}, {"kv_dtype": "fp8"}])
@pytest.mark.parametrize("layers", [1, 4, 8])
def test_logits_are_off_by_less_than_the_formats_bound(
    tmp_path: Path, layers: int, changes: dict[str, Any]
) -> None:
    """Logits are off by less than the format's bound, and by more than nothing, because the dense
    model does not answer.
    """
    shape = SHAPE | {"num_hidden_layers": layers}
    model_dir = write_tiny_model(tmp_path / "exact", std=0.1, **shape)
    moved_dir = write_tiny_model(tmp_path / "moved", std=0.1, **shape)
    generator = torch.Generator().manual_seed(layers)
    tensors = load_file(moved_dir / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
            tensors[name] = tensor * (1 + signs * 2.0**-4)
    save_file(tensors, moved_dir / "model.safetensors")
    exact = load_tiny(model_dir)
    assert (
        1e-4 < _error(load_tiny(model_dir, **changes), exact) < _error(load_tiny(moved_dir), exact)
    )


def test_keys_and_values_in_8_bits_take_a_quarter_of_float32(tmp_path: Path) -> None:
    """What fits by count of bytes: four times as many tokens."""
    model_dir = write_tiny_model(tmp_path)
    runner, exact = (load_tiny(model_dir, kv_tokens=640, kv_dtype=kind) for kind in ("fp8", "auto"))
    assert runner.facts.dtype == "float32+fp8kv"
    assert [keys.dtype for keys, _ in runner.cache.layers] == [FP8, FP8]
    taken = [sum(k.nbytes + v.nbytes for k, v in each.cache.layers) for each in (runner, exact)]
    assert 4 * taken[0] == taken[1]
    assert runner.facts.kv_tokens == exact.facts.kv_tokens


@pytest.mark.parametrize("stated", [BY_BLOCK, BY_PACKED_BLOCK, BY_ROW, BY_TENSOR, BY_PACKED_TENSOR])
def test_published_checkpoints_are_read_as_they_are(tmp_path: Path, stated: dict[str, Any]) -> None:
    """Merged matrices merge their scales; the numbers are those of the same weights in float32."""
    small, large = quantised_twins(tmp_path, stated)
    runner = load_tiny(small)
    assert runner.facts.dtype == "float32+fp8"
    assert all(
        isinstance(weight, Fp8Weight)
        and weight.is_blocked == (stated in (BY_BLOCK, BY_PACKED_BLOCK))
        for layer in runner.model.weights.layers
        for weight in (layer.qkv, layer.out, layer.gate_up, layer.down)
    )
    assert _error(runner, load_tiny(large)) < 1e-5
    assert _error(load_tiny(small, quantization="fp8"), runner) == 0


@pytest.mark.parametrize(
    ("weights", "rows", "words"),
    [
        (CHANNELS | {"strategy": "tensor"}, {"num_bits": 4}, "8 bits float with a scale by tensor"),
        (CHANNELS, STATIC, "activations of 8 with static scales"),
        (BLOCKS | {"block_structure": [64, 64]}, None, r"a scale by block \[64, 64\]"),
        (BLOCKS, STATIC, "activations of 8 with static scales"),
    ],
)
def test_the_scales_that_are_not_read_are_named(
    weights: dict[str, Any], rows: dict[str, Any] | None, words: str, tmp_path: Path
) -> None:
    """The scales that are not read are named, and not also in the words that fit the accepted form
    (vllm#33280).
    """
    group = {"weights": weights, "input_activations": rows}
    write_tiny_model(tmp_path, quantization_config=BY_ROW | {"config_groups": {"g": group}})
    with pytest.raises(ConfigError, match=words):
        load_tiny(tmp_path)


def test_modules_that_a_checkpoint_leaves_dense_stay_so(tmp_path: Path) -> None:
    """Modules that a checkpoint leaves dense stay so, unless the worker asks for 8 bits."""
    small, large = quantised_twins(tmp_path, BY_BLOCK)
    path = small / "model.safetensors"
    stored, dense = load_file(path), load_file(large / "model.safetensors")
    for name in [n for n in stored if n.endswith("layers.1.mlp.down_proj.weight")]:
        stored[name] = dense[name]
        del stored[name + "_scale_inv"]
    save_file(stored, path)
    runner = load_tiny(small)
    assert [isinstance(layer.down, Tensor) for layer in runner.model.weights.layers] == [
        False,
        True,
    ]
    assert _error(runner, load_tiny(large)) < 1e-5
    all_small = load_tiny(small, quantization="fp8")
    assert all(isinstance(layer.down, Fp8Weight) for layer in all_small.model.weights.layers)


@pytest.mark.parametrize(
    "stated",
    [
        {"quant_method": "bitsandbytes", "bits": 4},
        BY_BLOCK | {"weight_block_size": [64, 128]},
        BY_BLOCK | {"activation_scheme": "static"},
        BY_BLOCK | {"fmt": "e5m2"},
        BY_ROW | {"format": "pack-quantized"},
        BY_ROW | {"config_groups": {}},
        BY_ROW | {"config_groups": {"group_0": {"weights": CHANNELS | {"num_bits": 4}}}},
        BY_ROW | {"config_groups": {"group_0": {"weights": CHANNELS | {"strategy": "group"}}}},
        BY_ROW
        | {
            "config_groups": {
                "group_0": {"weights": CHANNELS, "input_activations": {"num_bits": 8}}
            }
        },
        BY_ROW | {"config_groups": {"group_0": {"weights": [8]}}},
        ["fp8"],
    ],
)
def test_other_quantisations_are_refused(tmp_path: Path, stated: Any) -> None:
    """Other quantisations are refused in one line that names config.json and what is read."""
    write_tiny_model(tmp_path, quantization_config=stated)
    with pytest.raises(
        ConfigError, match=r"config\.json: quantised weights .* 128 x 128"
    ) as caught:
        load_tiny(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("stated", "more"),
    [
        (BY_ROW, {"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"}}),
        (BY_TENSOR, {"kv_cache_scheme": "static"}),
        (BY_PACKED_TENSOR, {"kv_cache_scheme": {"num_bits": 8, "dynamic": False}}),
    ],
)
def test_scales_of_keys_and_values_are_left_out(
    stated: dict[str, Any], more: dict[str, Any], tmp_path: Path
) -> None:
    """Keys and values that are exact need none, so that the model is the one without them."""
    small, large = quantised_twins(tmp_path, stated)
    write_config(small, stated | more)
    tensors = load_file(small / "model.safetensors")
    for name in ("k_scale", "v_scale", "k_zero_point"):
        tensors[f"model.layers.0.self_attn.{name}"] = torch.ones(1)
    save_file(tensors, small / "model.safetensors")
    said: list[str] = []
    runner = load_tiny(small, report=lambda _phase, _share, text: said.append(text))
    assert _error(runner, load_tiny(large)) < 1e-5
    assert any("3 scales of keys and values" in text for text in said)


def write_config(folder: Path, stated: dict[str, Any]) -> None:
    path = folder / "config.json"
    raw = json.loads(path.read_bytes()) | {"quantization_config": stated}
    path.write_text(json.dumps(raw))


GROUP = BY_PACKED_TENSOR["config_groups"]["group_0"]


@pytest.mark.parametrize(
    "more",
    [
        {"format": "naive-quantized"},
        {"format": None},
        {
            "format": "mixed-precision",
            "config_groups": {"group_0": GROUP | {"format": "float-quantized"}},
        },
    ],
)
def test_other_words_for_eight_bit_floats_are_read(more: dict[str, Any], tmp_path: Path) -> None:
    """Older exports, and newer ones that name the format of each group."""
    small, large = quantised_twins(tmp_path, BY_PACKED_TENSOR)
    write_config(small, BY_PACKED_TENSOR | more)
    assert _error(load_tiny(small), load_tiny(large)) < 1e-5


def test_a_null_kind_of_float_is_the_usual_one(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, quantization_config=BY_BLOCK | {"fmt": None})
    assert read_model_config(tmp_path).stored is StoredFormat.FP8_BLOCKS


@pytest.mark.parametrize("name", ["mlp.down_proj", "self_attn.o_proj"])
@pytest.mark.parametrize("stated", [BY_BLOCK, BY_ROW, BY_PACKED_BLOCK, BY_TENSOR])
def test_numbers_in_8_bits_whose_scales_were_lost_are_refused(
    stated: dict[str, Any], name: str, tmp_path: Path
) -> None:
    """They were read as they are: a model that answers nonsense."""
    small, _ = quantised_twins(tmp_path, stated)
    weight = f"model.layers.1.{name}.weight"
    tensors = load_file(small / "model.safetensors")
    kept = {key: each for key, each in tensors.items() if not key.startswith(f"{weight}_scale")}
    assert len(kept) < len(tensors)
    save_file(kept, small / "model.safetensors")
    with pytest.raises(ConfigError, match=rf"has {weight} in 8 bits, but no .*_scale"):
        load_tiny(small)


HADAMARD = {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "input"}]}
AT_WEIGHTS = {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "weight_output"}]}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparse weights (sparse-24-bitmask)",
        ),
        (
            {"transform_config": {"config_groups": {"u": AT_WEIGHTS, "v": HADAMARD}}},
            "the transform v of activations (input)",
        ),
        ({"transform_config": {"config_groups": {"v": {}}}}, "the transform v"),
        ({"transform_config": {"config_groups": {"u": AT_WEIGHTS}}}, None),
        ({"transform_config": {}, "sparsity_config": {}}, None),
        ({"sparsity_config": {"format": "dense"}}, None),
    ],
)
def test_what_changes_numbers_beside_their_format_is_refused(
    tmp_path: Path, more: dict[str, Any], said: str | None
) -> None:
    """A transform that a step had to apply would be left out, and the answers be nonsense."""
    write_tiny_model(tmp_path, quantization_config=BY_ROW | more)
    if said is None:
        assert read_model_config(tmp_path).stored is StoredFormat.FP8_ROWS
        return
    with pytest.raises(ConfigError, match=re.escape(f"asks for {said}")):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    ("key", "stated", "said"),
    [
        ("compression_config", BY_ROW, None),
        ("quantization", {"group_size": 64, "bits": 4}, "of this kind (MLX) are not supported"),
    ],
)
def test_other_names_of_the_key_are_read(
    tmp_path: Path, key: str, stated: dict[str, Any], said: str | None
) -> None:
    """compressed-tensors' older one, and MLX's."""
    write_tiny_model(tmp_path, **{key: stated})
    if said is None:
        assert read_model_config(tmp_path).stored is StoredFormat.FP8_ROWS
        return
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("mlp.up_proj.weight_scale_inv", None, "has no tensor"),
        ("mlp.up_proj.weight_scale_inv", torch.ones(3, 2), r"asks for \[2, 2\]"),
        ("mlp.up_proj.weight", torch.ones(256, 160), "not in 8 bits"),
        ("mlp.up_proj.input_scale", torch.ones(1), "does not explain"),
    ],
)
def test_a_checkpoint_that_contradicts_itself_is_refused(
    tmp_path: Path, name: str, change: Tensor | None, said: str
) -> None:
    """Scales that are missing, misshapen or too many, or numbers that are no e4m3."""
    model_dir, _ = quantised_twins(tmp_path, BY_BLOCK)
    tensors = load_file(model_dir / "model.safetensors")
    tensors.pop(f"model.layers.1.{name}", None)
    if change is not None:
        tensors[f"model.layers.1.{name}"] = change
    save_file(tensors, model_dir / "model.safetensors")
    with pytest.raises(ConfigError, match=said):
        load_tiny(model_dir)


def test_blocks_that_would_hold_two_modules_are_refused(tmp_path: Path) -> None:
    """Queries of 192 rows: their last block would go on with the keys."""
    model_dir, _ = quantised_twins(
        tmp_path, BY_BLOCK, num_attention_heads=12, num_key_value_heads=4
    )
    with pytest.raises(ConfigError, match=f"192 rows, which blocks of {BLOCK}"):
        load_tiny(model_dir)


def test_drawn_weights_are_quantised_too(tmp_path: Path) -> None:
    """Drawn weights are quantised too, from the same draw, for measuring."""
    config = read_model_config(write_tiny_model(tmp_path))
    given = config, torch.device("cpu"), torch.float32
    small, exact = draw_weights(*given, change=quantised), draw_weights(*given)
    assert small.is_fp8
    assert not exact.is_fp8
    assert torch.equal(small.embedding, exact.embedding)
    down, wanted = small.layers[1].down, exact.layers[1].down
    assert isinstance(down, Fp8Weight)
    assert isinstance(wanted, Tensor)
    assert (wide(down) - wanted).norm() < 0.03 * wanted.norm()
