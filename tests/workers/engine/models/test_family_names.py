"""Names and wrappings under which checkpoints of known networks are published."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from benchmarks.drive import fresh_runner
from protocol.errors import ConfigError
from tests.fakes.tiny_families import FAMILIES, write_family
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.gpu_parity.logits import engine_logits
from workers.engine.models.model_config import read_model_config

PROMPT = list(range(2, 140))


def _renamed(folder: Path, old: str, new: str) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({n.replace(old, new, 1): t for n, t in tensors.items()}, path)


def _changed(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    raw = {**json.loads(path.read_bytes()), **changes}
    path.write_text(json.dumps({key: value for key, value in raw.items() if value != "no"}))
    return folder


def _logits(folder: Path, **settings: Any) -> torch.Tensor:
    return engine_logits(fresh_runner(load_tiny(folder, **settings)), [PROMPT])[0]


@pytest.mark.parametrize(
    ("names", "family"),
    [
        ({"model_type": "exaone"}, "EXAONE"),
        ({"model_type": "internlm3", "architectures": ["InternLM3ForCausalLM"]}, "InternLM3"),
        (
            {"model_type": "iquestcoder", "architectures": ["IQuestCoderForCausalLM"]},
            "IQuest-Coder",
        ),
    ],
)
def test_a_llama_under_another_name_is_a_llama(
    names: dict[str, Any], family: str, tmp_path: Path
) -> None:
    """A Llama under another name, whose files say LlamaForCausalLM or a class that is the same, is
    loaded as a Llama.
    """
    expected = _logits(write_family(tmp_path, "llama3"))
    assert torch.equal(_logits(_changed(tmp_path, **names)), expected)
    assert read_model_config(tmp_path).family == family


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"model_type": "own"}, "model_type 'own' is not supported: choose one of qwen2, "),
        ({"model_type": "own", "architectures": "no"}, "model_type 'own' is not supported: "),
        ({"model_type": "no", "architectures": "no"}, "model_type None is not supported: "),
        ({"architectures": ["Own"]}, "architecture Own is not supported: choose one of Qwen2For"),
        (
            {"model_type": "own", "architectures": ["Own"]},
            "architecture Own (model_type 'own') is not supported: choose one of Qwen2For",
        ),
    ],
)
def test_the_name_that_is_not_known_is_named(
    names: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Of the two names in a config.json the unknown one is named."""
    _changed(write_family(tmp_path, "llama3"), **names)
    with pytest.raises(ConfigError) as caught:
        read_model_config(tmp_path)
    assert words in str(caught.value)


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("kind", ["ministral3", "mistral"])
def test_mistrals_model_with_a_tower_is_its_text_model(
    kind: str, tmp_path: Path, *, is_tied: bool
) -> None:
    """Mistral's model with a tower is its text model, as transformers writes it: names within
    `language_model.`, the head among them.
    """
    text = {**json.loads((write_family(tmp_path, kind) / "config.json").read_bytes())}
    config = transformers.Mistral3Config(
        vision_config=transformers.PixtralVisionConfig(
            hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            head_dim=16, image_size=32, patch_size=16,
        ),
        text_config=text,
        tie_word_embeddings=is_tied,
    )  # fmt: skip
    config.text_config.tie_word_embeddings = is_tied
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.Mistral3ForConditionalGeneration(config).eval()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(_logits(tmp_path), expected, atol=1e-4, rtol=0)
    _renamed(tmp_path, "language_model.model.", "model.language_model.")
    _renamed(tmp_path, "language_model.lm_head", "lm_head")
    torch.testing.assert_close(_logits(tmp_path), expected, atol=1e-4, rtol=0)


def test_a_tower_around_another_text_model_is_refused(tmp_path: Path) -> None:
    write_family(tmp_path, "qwen2")
    _changed(
        tmp_path,
        model_type="mistral3",
        architectures=["Mistral3ForConditionalGeneration"],
        text_config={"model_type": "mistral4"},
    )
    with pytest.raises(ConfigError, match="text_config with model_type = 'mistral4'"):
        read_model_config(tmp_path)


def test_published_ministral_files_leave_the_rotation_to_the_defaults(tmp_path: Path) -> None:
    """Published Ministral files leave the rotation to the defaults of transformers 5."""
    _changed(write_family(tmp_path, "ministral3"), rope_parameters="no")
    rope = read_model_config(tmp_path).attention.rope
    assert (rope.growth, rope.original, rope.factor, rope.theta) == (0.1, 16_384, 16.0, 1e6)


@pytest.mark.parametrize("prefix", ["base_model.model.", "_orig_mod.", "module.", "a.b."])
@pytest.mark.parametrize("family", ["llama3", "qwen3_5"])
def test_a_foreign_prefix_is_named(prefix: str, family: str, tmp_path: Path) -> None:
    """A foreign prefix is named, and not a missing tensor: to fetch the model again would change
    nothing.
    """
    path = write_family(tmp_path, family) / "model.safetensors"
    save_file({prefix + name: tensor for name, tensor in load_file(path).items()}, path)
    with pytest.raises(ConfigError, match=f"names of its tensors begin with '{prefix}'"):
        load_tiny(tmp_path)


@pytest.mark.parametrize("part", ["_orig_mod", "_checkpoint_wrapped_module"])
@pytest.mark.parametrize("place", ["model.layers.0", "model.layers.0.mlp", "lm_head"])
def test_a_module_that_was_saved_within_another_is_named(
    part: str, place: str, tmp_path: Path
) -> None:
    """A module that was saved within another is named, where single layers were compiled, or
    computed again in the backward pass, and not the whole model.
    """
    path = write_family(tmp_path, "llama3") / "model.safetensors"
    held = f"{place}.{part}."
    save_file({n.replace(f"{place}.", held): t for n, t in load_file(path).items()}, path)
    with pytest.raises(ConfigError, match=rf"has {held}\S+ instead of {place}\.") as caught:
        load_tiny(tmp_path)
    assert "fetch" not in str(caught.value)


def test_a_missing_head_is_named(tmp_path: Path) -> None:
    """A checkpoint of a tied model whose config.json does not say so."""
    path = write_family(tmp_path, "llama3") / "model.safetensors"
    tensors = load_file(path)
    del tensors["lm_head.weight"]
    save_file(tensors, path)
    with pytest.raises(ConfigError, match=r"no tensor lm_head.weight, .* tie_word_embeddings"):
        load_tiny(tmp_path)


@pytest.mark.parametrize("name", ["k_scale", "v_scale", "attn.k_scale", "k_proj.k_scale"])
def test_scales_of_keys_that_are_left_over_are_ignored_in_a_line(name: str, tmp_path: Path) -> None:
    """Scales of keys that an exporter left over (llm-compressor#967) are ignored with a line."""
    path = write_tiny_model(tmp_path) / "model.safetensors"
    expected = _logits(tmp_path)
    tensors = load_file(path)
    save_file({**tensors, f"model.layers.0.self_attn.{name}": torch.ones(1)}, path)
    said: list[str] = []
    runner = load_tiny(tmp_path, report=lambda _phase, _share, text: said.append(text))
    assert torch.equal(engine_logits(fresh_runner(runner), [PROMPT])[0], expected)
    assert any("1 scales of keys and values (k_scale, v_scale) are ignored" in x for x in said)


def test_every_family_has_a_tiny_model() -> None:
    """Parity is tested on these."""
    assert {"ministral3", "seed_oss", "internlm3", "iquestcoder"} <= FAMILIES.keys()


def _shares_at_refusal(folder: Path, words: str) -> list[float]:
    """How much had been read each time that reading was reported, before the refusal; phases begin
    with 0 and end with 1.
    """
    shares: list[float] = []
    with pytest.raises(ConfigError, match=words):
        load_tiny(folder, report=lambda _phase, share, _text: shares.append(share))
    return [share for share in shares if 0 < share < 1]


@pytest.mark.parametrize(
    "name",
    [
        "model.visual.blocks.0.weight",
        "mtp.fc.weight",
        "model.layers.3.mlp.up_proj.weight",
        "model.layers.00.mlp.up_proj.weight",
        "model.mtp_layers.0.weight",
        "layers.0.mlp.up_proj.weight",
        "image_newline",
    ],
)
@pytest.mark.parametrize("family", ["llama3", "gemma3"])
def test_parts_that_no_network_has_are_named_before_anything_is_read(
    family: str, name: str, tmp_path: Path
) -> None:
    """Before anything is read, because a large model takes minutes."""
    path = write_family(tmp_path, family, num_hidden_layers=3, layer_types=None)
    path = path / "model.safetensors"
    save_file({**load_file(path), name: torch.ones(3)}, path)
    assert _shares_at_refusal(tmp_path, rf"has a tensor {name} that") == []


@pytest.mark.parametrize("name", ["mlp.up_proj.bias", "self_attn.q_proj.lora_A.weight"])
def test_what_no_layer_has_is_named_behind_the_first(name: str, tmp_path: Path) -> None:
    path = write_family(tmp_path, "llama3") / "model.safetensors"
    more = {f"model.layers.{index}.{name}": torch.ones(3) for index in range(3)}
    save_file({**load_file(path), **more}, path)
    shares = _shares_at_refusal(tmp_path, rf"has a tensor model\.layers\.0\.{name} that")
    assert len(shares) == 1


@pytest.mark.parametrize("layer", [0, 2])
def test_a_lost_layer_is_named_before_anything_is_read(layer: int, tmp_path: Path) -> None:
    path = write_family(tmp_path, "llama3") / "model.safetensors"
    start = f"model.layers.{layer}."
    save_file({n: t for n, t in load_file(path).items() if not n.startswith(start)}, path)
    words = rf"has no tensor of model\.layers\.{layer}, one of the 3 layers"
    assert _shares_at_refusal(tmp_path, words) == []
