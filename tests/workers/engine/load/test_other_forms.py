"""Directories that hold something else than a model's safetensors: one line, before any weights."""

import json
from pathlib import Path

import pytest

from config import WorkerConfig
from protocol.errors import ConfigError
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from workers.engine.models.model_config import read_model_config
from workers.model_dir import check_text_files, read_json


def _config(model_dir: Path) -> WorkerConfig:
    return WorkerConfig("w", str(model_dir), "m", (), token_budget=256)


def _adapter(folder: Path) -> None:
    base = {"base_model_name_or_path": "Qwen/Qwen3-8B", "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(base))
    (folder / "adapter_model.safetensors").touch()


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("snapshots/ab12/config.json", "has no config.json, but ab12 in it has: give "),
        ("model-Q4_K_M.gguf", 'holds GGUF files and no safetensors: serve it with engine = "llama'),
        ("pytorch_model-00001-of-00002.bin", "holds pytorch_model*.bin (PyTorch's pickles"),
        ("consolidated.safetensors", "holds consolidated* (Mistral's or Meta's own form)"),
        ("part/config.json", "has no config.json, but part in it has: give "),
    ],
)
def test_what_lies_there_is_named(tmp_path: Path, file: str, words: str) -> None:
    """Whether the first file that is missed is config.json or the weights."""
    (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / file).touch()
    with pytest.raises(ConfigError) as caught:
        read_model_config(tmp_path)
    assert words in str(caught.value)
    if "config" in file:
        return
    write_tiny_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError) as caught:
        load_tiny(tmp_path)
    assert words in str(caught.value)


def test_a_directory_of_models_names_one(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").touch()
    with pytest.raises(ConfigError) as caught:
        read_json(tmp_path / "config.json")
    words = f"{tmp_path} has no config.json, but 2 directories in it have: give one of them, as "
    assert str(caught.value) == f"{words}{tmp_path / 'a'}"


def test_an_adapter_is_named_with_its_base(tmp_path: Path) -> None:
    """An adapter is named with its base, and not the first file that it lacks."""
    _adapter(tmp_path)
    with pytest.raises(ConfigError, match="holds an adapter for Qwen/Qwen3-8B, not a model"):
        read_json(tmp_path / "config.json")


def test_a_model_with_other_files_beside_loads(tmp_path: Path) -> None:
    """A model with other files beside, as published ones have them, loads."""
    write_tiny_model(tmp_path)
    for name in ("consolidated.safetensors", "pytorch_model.bin", "a.gguf", "adapter_config.json"):
        (tmp_path / name).touch()
    assert load_tiny(tmp_path).facts.dtype == "float32"


def test_a_missing_config_beside_weights_is_what_is_missing(tmp_path: Path) -> None:
    """Published models have files of other forms beside theirs."""
    write_tiny_model(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    (tmp_path / "consolidated.safetensors").touch()
    (tmp_path / "model-Q4_K_M.gguf").touch()
    with pytest.raises(ConfigError, match=r"config.json does not exist: give a complete"):
        read_model_config(tmp_path)


def test_a_tokenizer_is_missed_before_weights_are_read(tmp_path: Path) -> None:
    """The gateway would miss it when all is loaded, after every one of five starts."""
    write_tiny_model(tmp_path)
    with pytest.raises(ConfigError, match=r"has no tokenizer.json, .* AutoTokenizer"):
        check_text_files(_config(tmp_path))
    path = tmp_path / "tokenizer.json"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
    with pytest.raises(ConfigError, match="pointer of git-lfs"):
        check_text_files(_config(tmp_path))
    path.write_text("{}")
    check_text_files(_config(tmp_path))
    check_text_files(_config(Path("dummy:qwen3-8b")))


def test_mistrals_own_tokenizer_has_a_remedy(tmp_path: Path) -> None:
    """`AutoTokenizer.save_pretrained` writes no tokenizer.json of it."""
    write_tiny_model(tmp_path)
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tekken.json and no .*TokenizerFast as T; .*eos_token="):
        check_text_files(_config(tmp_path))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_a_broken_text_file_is_named_before_weights_are_read(tmp_path: Path, name: str) -> None:
    """A broken text file is named before weights are read. JSON is read as Python reads it: an
    infinite limit is no fault.
    """
    write_tiny_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / name).write_text('{"time_step_limit": [0.0, Infinity]}')
    check_text_files(_config(tmp_path))
    (tmp_path / name).write_text('{"time_step_limit": ')
    with pytest.raises(ConfigError, match=f"{name} is not readable JSON"):
        check_text_files(_config(tmp_path))


def test_another_engine_is_offered_for_another_architecture(tmp_path: Path) -> None:
    """Herma's gateway serves it all the same."""
    write_tiny_model(tmp_path, architectures=["MixtralForCausalLM"], model_type="mixtral")
    with pytest.raises(ConfigError, match=r'MixtralForCausalLM .* is not .* as engine = "vllm"'):
        read_model_config(tmp_path)
