"""Weights that are drawn: for a shape without a checkpoint, in the benchmark only."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from config import parse_config
from protocol.errors import ConfigError
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from workers.engine.compile.kernel_cache import KernelCache, cache_size
from workers.engine.models.dummy import draw_weights
from workers.engine.models.model_config import read_model_config
from workers.model_dir import dummy_dir, dummy_names

CPU = torch.device("cpu")
_SCANDIR = os.scandir


def test_a_dummy_has_the_layout_of_what_is_loaded(tmp_path: Path) -> None:
    """Every tensor has the shape and dtype that reading a checkpoint gives; the draw repeats."""
    model_dir = write_tiny_model(tmp_path, attention_bias=True)
    runner = load_tiny(Path(f"dummy:{model_dir}"))
    read = load_tiny(model_dir)
    assert runner.facts == read.facts
    config = read_model_config(model_dir)
    drawn, again = (draw_weights(config, CPU, torch.float32) for _ in range(2))
    assert torch.equal(drawn.layers[1].gate_up, again.layers[1].gate_up)
    assert drawn.head is not drawn.embedding
    assert drawn.embedding.std() == pytest.approx(config.hidden_size**-0.5, rel=0.1)


def test_an_unknown_shape_is_refused_with_those_that_exist() -> None:
    """The line lists the installed shapes, smallest first."""
    assert dummy_names()[0] == "qwen3-0.6b"
    assert dummy_names()[-2:] == ["qwen3-32b", "qwen3.6-35b-a3b"]
    with pytest.raises(ConfigError, match=r"'dummy:gpt' .* dummy:qwen3-0\.6b, dummy:qwen3-1\.7b"):
        dummy_dir("dummy:gpt")


def test_a_worker_cannot_serve_a_dummy() -> None:
    """A worker cannot serve a dummy, which has no tokenizer; the configuration is refused before
    anything starts.
    """
    table = '[[workers]]\nname = "w"\nmodel = "dummy:qwen3-8b"\nserves = "m"\n'
    with pytest.raises(ConfigError, match="cannot serve dummy:qwen3-8b"):
        parse_config(table, "herma.toml")


def test_the_kernel_cache_is_told(tmp_path: Path) -> None:
    """Compiles and hits are counted, files and bytes are summed."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/kernel.cubin").write_bytes(bytes(100))
    assert cache_size(tmp_path) == (1, 100)
    assert cache_size(tmp_path / "none") == (0, 0)
    cache = KernelCache()
    cache.count("kernel", cache_hit=True, seconds=0.0)
    cache.count("kernel", cache_hit=False, seconds=1.5)
    assert cache.summary().startswith("1 found, 1 compiled in 1.5 s; ")


def test_others_may_compile_into_the_kernel_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Triton lays aside, until a kernel is whole, is gone a moment after it was listed."""
    (tmp_path / "a/tmp.pid_7").mkdir(parents=True)
    (tmp_path / "a/kernel.cubin").write_bytes(bytes(100))
    (tmp_path / "a/tmp.pid_8").write_bytes(bytes(7))

    def list_late(path: str | Path) -> _Listing:
        listing = _Listing(path)
        if Path(path).name == "a":
            (tmp_path / "a/tmp.pid_7").rmdir()
            (tmp_path / "a/tmp.pid_8").unlink()
        return listing

    monkeypatch.setattr(os, "scandir", list_late)
    assert cache_size(tmp_path) == (1, 100)


class _Listing:
    """All of a folder at once, in the form of `os.scandir`."""

    def __init__(self, path: str | Path) -> None:
        with _SCANDIR(path) as entries:
            self._entries = iter(list(entries))

    def __enter__(self) -> Iterator[os.DirEntry[str]]:
        return self._entries

    def __exit__(self, *_: object) -> None:
        pass

    def __next__(self) -> os.DirEntry[str]:
        return next(self._entries)
