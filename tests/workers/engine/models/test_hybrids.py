"""What is particular to the files of Qwen3.5: towers, names, gates among queries, 8 bits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.drive import fresh_runner
from benchmarks.engine.files import write_checkpoint
from benchmarks.engine.reference import reference_logits
from kernels.fp8 import BLOCK, Fp8Weight
from protocol.errors import ConfigError
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny
from tests.gpu_parity.logits import engine_logits
from workers.engine.models.description import Attention, DeltaRule
from workers.engine.models.dummy import draw_weights
from workers.engine.models.model_config import read_model_config
from workers.engine.models.weight_reader import load_weights
from workers.engine.models.weights import LayerWeights, quartered
from workers.model_dir import dummy_dir, read_eos_ids, read_vocab_size

PROMPT = list(range(2, 120))


@pytest.fixture(name="text", scope="module")
def _text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("text"), "qwen3_5")


def _config(home: Path, text: Path, **changes: Any) -> Path:
    raw = json.loads((text / "config.json").read_bytes())
    (home / "config.json").write_text(json.dumps(raw | changes))
    return home


def _with_tower(home: Path, text: Path, extra: dict[str, Tensor]) -> Path:
    """As published: an outer table, `model.language_model.`, a tower, layers that guess tokens."""
    raw = json.loads((text / "config.json").read_bytes())
    outer = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}
    (home / "config.json").write_text(json.dumps(outer | {"text_config": raw, "dtype": "float32"}))
    tensors = load_file(text / "model.safetensors")
    named = {name.replace("model.", "model.language_model.", 1): t for name, t in tensors.items()}
    tower = {"model.visual.patch_embed.weight": torch.zeros(3), "mtp.fc.weight": torch.zeros(3)}
    save_file(named | tower | extra, home / "model.safetensors")
    return home


def test_a_model_with_a_tower_is_its_text_model(tmp_path: Path, text: Path) -> None:
    """The tower and the layers that guess tokens are left out; anything else is not."""
    exact, found = load_tiny(text), load_tiny(_with_tower(tmp_path, text, {}))
    expected = engine_logits(fresh_runner(exact), [PROMPT])[0]
    assert torch.equal(engine_logits(fresh_runner(found), [PROMPT])[0], expected)
    with pytest.raises(ConfigError, match=r"audio\.weight .* same Qwen3\.5 model"):
        load_tiny(_with_tower(tmp_path, text, {"model.audio.weight": torch.zeros(3)}))


@pytest.mark.parametrize("outer", [True, False, None])
def test_either_table_ties_the_head(tmp_path: Path, text: Path, outer: bool | None) -> None:
    """transformers writes the default of the text model, false, beside the outer table's true."""
    path = _with_tower(tmp_path, text, {})
    raw = json.loads((path / "config.json").read_bytes())
    tied, inner = "tie_word_embeddings", raw["text_config"]
    raw |= {} if outer is None else {tied: outer}
    raw["text_config"] = inner | {tied: not outer}
    (path / "config.json").write_text(json.dumps(raw))
    tensors = load_file(path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, path / "model.safetensors")
    weights = load_tiny(path).model.weights
    assert weights.head is weights.embedding


def test_every_fourth_layer_attends_unless_the_file_says_else(tmp_path: Path, text: Path) -> None:
    """Every fourth layer attends, 16 of 64, unless the file says else; in the tiny model every
    third.
    """
    large = read_model_config(dummy_dir("dummy:qwen3.6-27b"))
    kinds = [isinstance(layer.mixer, Attention) for layer in large.layers]
    assert [at for at, attends in enumerate(kinds) if attends] == list(range(3, 64, 4))
    assert large.layer_weights == pytest.approx(24.35e9, rel=0.001)
    tiny = read_model_config(text)
    assert [type(layer.mixer) for layer in tiny.layers] == [DeltaRule, DeltaRule, Attention] * 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attn_output_gate": False}, "attn_output_gate"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type"),
        ({"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"linear_num_value_heads": 3}, "3 value heads for 2 key heads"),
        ({"layer_types": ["sliding_attention"] * 6}, "sliding_attention"),
        ({"layer_types": ["linear_attention"] * 6}, "without attention"),
        ({"model_type": "qwen4_exp_text", "architectures": None}, "qwen4_exp_text"),
    ],
)
def test_what_we_lack_is_one_line(
    tmp_path: Path, text: Path, changes: dict[str, Any], named: str
) -> None:
    """What we lack is one line before any weight is read."""
    with pytest.raises(ConfigError, match=named) as caught:
        read_model_config(_config(tmp_path, text, **changes))
    assert "\n" not in str(caught.value)


def test_invariance_is_refused(text: Path) -> None:
    """The line says which key to remove."""
    with pytest.raises(ConfigError, match="remove `invariant`"):
        load_tiny(text, invariant=True)


def test_products_are_in_eight_bits_and_gates_of_states_are_not(text: Path) -> None:
    """All rows behind one depend on what it keeps."""
    runner = load_tiny(text, quantization="fp8")
    for described, layer in zip(
        runner.model.config.layers, runner.model.weights.layers, strict=True
    ):
        is_delta = isinstance(described.mixer, DeltaRule)
        assert isinstance(layer.qkv, Fp8Weight)
        assert isinstance(layer.gate, Tensor) == is_delta


@pytest.mark.parametrize("change", [None, quartered])
def test_norms_before_products_in_four_bits_are_of_their_dtype(
    change: Callable[[LayerWeights], LayerWeights] | None,
) -> None:
    """Norms before products in four bits have the kernels' dtype, because the kernels take them
    into the product; other norms of `1 + w` keep float32.
    """
    config = read_model_config(dummy_dir("dummy:qwen3.6-27b")).with_layers((0, 3))
    weights = draw_weights(config, torch.device("meta"), torch.bfloat16, change=change)
    wanted = torch.bfloat16 if change is quartered else torch.float32
    for layer in weights.layers:
        assert layer.input_norm.dtype == layer.mlp_norm.dtype == wanted
        assert layer.qk_norm is None or layer.qk_norm.dtype == torch.float32
    assert weights.norm.dtype == torch.float32


def test_a_checkpoint_in_eight_bits_by_block_is_read(tmp_path: Path) -> None:
    """Heads that are turned in part are widened: the scales of blocks cannot move with rows."""
    wide = {"hidden_size": BLOCK, "intermediate_size": 2 * BLOCK, "head_dim": 64}
    wide |= {"linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_value_head_dim": 64}
    text = write_family(tmp_path / "text", "qwen3_5", **wide)
    (home := tmp_path / "fp8").mkdir()
    stated = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    tensors = {}
    for name, tensor in load_file(text / "model.safetensors").items():
        if tensor.ndim != 2 or name.endswith(("in_proj_a.weight", "in_proj_b.weight")):
            tensors[name] = tensor
            continue
        if "layers." not in name:
            tensors[name] = tensor
            continue
        rows, columns = (-(-size // BLOCK) for size in tensor.shape)
        tensors[name] = tensor.to(torch.float8_e4m3fn)
        tensors[name + "_scale_inv"] = torch.full((rows, columns), 0.5)
    save_file(tensors, _config(home, text, quantization_config=stated) / "model.safetensors")
    layers = load_tiny(home).model.weights.layers
    exact = load_tiny(text).model.weights.layers
    assert isinstance(layers[0].qkv, Fp8Weight)
    assert isinstance(layers[2].out, Fp8Weight)
    for part in ("qkv", "gate"):
        found, expected = getattr(layers[2], part), getattr(exact[2], part)
        rounded = expected.to(torch.float8_e4m3fn).float() * 0.5
        torch.testing.assert_close(found, rounded)


def test_text_files_say_the_same_of_a_model_with_a_tower(tmp_path: Path, text: Path) -> None:
    """How many ids there are, and which end an answer."""
    home = _with_tower(tmp_path, text, {})
    assert read_vocab_size(home) == read_vocab_size(text) == 151
    assert read_eos_ids(home) == read_eos_ids(text) == (1,)
    (home / "config.json").write_text("{}")
    assert read_vocab_size(home) is None
    assert read_eos_ids(home) == ()


def test_the_benchmarks_reference_computes_the_same(text: Path) -> None:
    """The benchmark's reference computes the same in plain torch over the whole sequence; and a
    checkpoint of drawn weights loads.
    """
    runner = load_tiny(text)
    config, weights = runner.model.config, runner.model.weights
    ids = torch.tensor(PROMPT)
    expected = reference_logits(config, weights, ids, torch.arange(len(ids)), torch.float32)
    found = engine_logits(fresh_runner(runner), [PROMPT])[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_a_written_checkpoint_loads(tmp_path: Path, text: Path) -> None:
    """Published names: of a shape whose weights are drawn."""
    cpu = torch.device("cpu")
    write_checkpoint(str(text), tmp_path, cpu, torch.float32)
    config = read_model_config(tmp_path)
    loaded = load_weights(tmp_path, config, cpu, torch.float32, lambda *_: None)
    drawn = draw_weights(config, cpu, torch.float32)
    assert loaded.num_bytes() == drawn.num_bytes()
    for field in ("qkv", "gate", "out"):
        assert torch.equal(getattr(loaded.layers[0], field), getattr(drawn.layers[0], field))
    ours, theirs = loaded.layers[0].delta, drawn.layers[0].delta
    assert ours is not None
    assert theirs is not None
    assert all(torch.equal(*each) for each in zip(ours, theirs, strict=True))
