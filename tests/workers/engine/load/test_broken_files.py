"""Files of a checkpoint that are there and are not what their names say: one line each."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from protocol.errors import ConfigError
from tests.fakes.text_files import make_text_files
from tests.fakes.tiny_models import load_tiny, write_tiny_model

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 988097824\n"
SHARD = "model-00002-of-00003.safetensors"


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_tiny(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{folder}/")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", SHARD])
def test_what_git_has_left_in_the_place_of_a_file_is_named(name: str, tmp_path: Path) -> None:
    """A clone without git-lfs has all names, and no weights."""
    write_tiny_model(tmp_path, shards=3)
    (tmp_path / name).write_bytes(POINTER)
    expected = f"{name} is a pointer of git-lfs, not the file: run git lfs pull"
    assert refusal(tmp_path) == expected


def test_a_json_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    (tmp_path / "config.json").write_text('{"a":' + "[" * 5000 + "]" * 5000 + "}")
    assert refusal(tmp_path).startswith("config.json is not readable JSON (maximum recursion")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.bool])
@pytest.mark.parametrize("part", ["q_proj.weight", "input_layernorm.weight", "embed_tokens"])
def test_integers_are_no_weights(part: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Converted to numbers they would answer, and answer nonsense."""
    write_tiny_model(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if part in name)
    tensors[name] = tensors[name].mul(50).to(dtype)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert f"{name} holds integers (" in refusal(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_numbers_of_another_width_are_converted(dtype: torch.dtype, tmp_path: Path) -> None:
    """One tensor may be wider or narrower than the others; its numbers are those of the file."""
    write_tiny_model(tmp_path)
    for name, data in make_text_files().items():
        (tmp_path / name).write_bytes(data)
    tensors = load_file(tmp_path / "model.safetensors")
    name = next(name for name in tensors if "layers.0" in name and "q_proj" in name)
    tensors[name] = tensors[name].to(dtype)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    qkv = load_tiny(tmp_path).model.weights.layers[0].qkv
    assert isinstance(qkv, torch.Tensor)
    assert qkv[: len(tensors[name])].equal(tensors[name].to(qkv.dtype))
