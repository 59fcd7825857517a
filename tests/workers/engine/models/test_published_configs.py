"""Files as they are published, in the spellings of transformers 4, say what transformers reads."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from protocol.errors import ConfigError
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny, tiny_config
from workers.engine.models.angles import cos_sin
from workers.engine.models.description import Attention, ModelDescription, RopeKind
from workers.engine.models.model_config import read_model_config
from workers.model_dir import dummy_dir

SHORT = [1.0 + 0.05 * pair for pair in range(48)]
LONG = [1.0 + 0.5 * pair for pair in range(48)]
PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen2.5-yarn": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "head_dim": None,
        "hidden_size": 64,
        "max_position_embeddings": 512,
        "rope_theta": 1e6,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        "sliding_window": 512,
        "max_window_layers": 2,
        "use_sliding_window": False,
    },
    "llama-3.1": json.loads((dummy_dir("dummy:llama-3.1-8b") / "config.json").read_bytes()),
    "mistral-0.1": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 64,
        "rope_theta": 1e4,
    },
    "gemma-3": json.loads((dummy_dir("dummy:gemma-3-12b") / "config.json").read_bytes()),
    "phi-3-128k": {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "pad_token_id": 0,
        "head_dim": None,
        "hidden_size": 384,
        "max_position_embeddings": 2048,
        "original_max_position_embeddings": 1024,
        "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
        "sliding_window": 4096,
    },
    "qwen3.6": json.loads((dummy_dir("dummy:qwen3.6-27b") / "config.json").read_bytes()),
    "qwen3-scaled-later": {
        "rope_theta": None,
        "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "rope_scaling": {"type": "yarn", "factor": 4.0, "rope_theta": 1e6},
    },
    "gemma-3-scaled-later": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_theta": None,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "phi-4": json.loads((dummy_dir("dummy:phi-4-14b") / "config.json").read_bytes()),
}


def _read(folder: Path, name: str) -> tuple[ModelDescription, Any]:
    stated = PUBLISHED[name]
    raw = stated if len(stated) > 10 or "text_config" in stated else tiny_config(**stated)
    (folder / "config.json").write_text(json.dumps(raw))
    theirs = transformers.AutoConfig.from_pretrained(folder)
    return read_model_config(folder), theirs.get_text_config()


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Sizes, and the layers that have windows, are those that transformers reads."""
    ours, theirs = _read(tmp_path, name)
    mixer = ours.attention
    assert ours.num_layers == theirs.num_hidden_layers
    assert (mixer.num_heads, mixer.num_kv_heads) == (
        theirs.num_attention_heads,
        theirs.num_key_value_heads,
    )
    assert (ours.vocab_size, ours.hidden_size) == (theirs.vocab_size, theirs.hidden_size)
    assert ours.layers[0].mlp.width == theirs.intermediate_size
    assert ours.tied == theirs.tie_word_embeddings
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    mixers = [layer.mixer for layer in ours.layers]
    windows = [mixer.window if isinstance(mixer, Attention) else 0 for mixer in mixers]
    kinds = getattr(theirs, "layer_types", None)
    stated = getattr(theirs, "sliding_window", None) or 0
    if kinds is not None:
        assert windows == [stated if kind == "sliding_attention" else 0 for kind in kinds]
    elif stated < ours.max_position_embeddings:
        assert set(windows) == {stated}


@pytest.mark.parametrize("window", [512, 2048])
@pytest.mark.parametrize("name", PUBLISHED)
def test_angles_are_those_of_transformers(name: str, window: int, tmp_path: Path) -> None:
    """Angles are those of transformers, for engines with short and with long windows, at every
    position.
    """
    ours, theirs = _read(tmp_path, name)
    for kind, mixer in {mixer.window: mixer for mixer in ours.attentions}.items():
        found = cos_sin(mixer.rope, mixer.head_dim, window)
        expected = _their_angles(theirs, mixer, window, is_local=kind > 0)
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)


def _their_angles(theirs: Any, mixer: Attention, window: int, *, is_local: bool) -> Tensor:
    model = transformers.AutoModelForCausalLM
    with torch.device("meta"):
        theirs.num_hidden_layers = 2
        if getattr(theirs, "layer_types", None) is not None:
            theirs.layer_types = list(dict.fromkeys(theirs.layer_types))[:2] * 2
            theirs.layer_types = theirs.layer_types[:2]
        rotary_class = type(model.from_config(theirs).model.rotary_emb)
    rotary = rotary_class(theirs)
    positions = torch.arange(window).unsqueeze(0)
    x = torch.zeros(1, dtype=torch.float32)
    if theirs.model_type == "gemma3_text":
        kind = "sliding_attention" if is_local else "full_attention"
        cos, sin = rotary(x, positions, kind)
    else:
        cos, sin = rotary(x, positions)
    half, rest = mixer.rope.dim // 2, (mixer.head_dim - mixer.rope.dim) // 2
    cos = torch.nn.functional.pad(cos[0, :, :half], (0, rest), value=1.0)
    return torch.cat((cos, torch.nn.functional.pad(sin[0, :, :half], (0, rest))), dim=-1)


def test_yarn_stretches_the_window(tmp_path: Path) -> None:
    """Published files state the original one."""
    ours, _ = _read(tmp_path, "qwen2.5-yarn")
    assert ours.max_position_embeddings == 2048


def test_scaling_that_was_added_keeps_the_base(tmp_path: Path) -> None:
    """transformers falls back to 10,000, the base of no model that has another."""
    parameters = {"rope_type": "default", "rope_theta": 1e6}
    scaling = {"rope_type": "yarn", "factor": 4.0}
    raw = tiny_config(rope_theta=None, rope_parameters=parameters, rope_scaling=scaling)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    rope = read_model_config(tmp_path).attention.rope
    assert (rope.kind, rope.theta, rope.factor) == (RopeKind.YARN, 1e6, 4.0)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_a_gemma_with_a_tower_is_its_text_model(tmp_path: Path, prefix: str) -> None:
    """Under either of the published names; the tower is left out, anything else is not."""
    text, whole = tmp_path / "text", tmp_path / "whole"
    write_family(text, "gemma3")
    whole.mkdir()
    raw = json.loads((text / "config.json").read_bytes())
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    (whole / "config.json").write_text(json.dumps(outer | {"text_config": raw, "dtype": "float32"}))
    tensors = load_file(text / "model.safetensors")
    named = {name.replace("model.", prefix, 1): each for name, each in tensors.items()}
    tower = {"vision_tower.vision_model.weight": torch.zeros(3)}
    save_file(named | tower, whole / "model.safetensors")
    exact, found = load_tiny(text).model, load_tiny(whole).model
    for ours, theirs in zip(found.weights.layers, exact.weights.layers, strict=True):
        assert isinstance(ours.qkv, Tensor)
        assert isinstance(theirs.qkv, Tensor)
        assert torch.equal(ours.qkv, theirs.qkv)
    save_file(named | {"audio_tower.weight": torch.zeros(3)}, whole / "model.safetensors")
    with pytest.raises(ConfigError, match=r"audio_tower\.weight .* same Gemma 3 model"):
        load_tiny(whole)
