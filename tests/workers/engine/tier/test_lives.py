"""Two lives of an engine over one region: the second uses what the first stored, unless what it
would compute is something else.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.drive import Drive
from config import CacheConfig, WorkerConfig
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from workers.engine.runner import ModelRunner
from workers.engine.start import load_runner
from workers.engine.tier import sizing
from workers.engine.tier.page_words import hash_of
from workers.memory_room import MemoryRoom

BLOCK = 16
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
PROMPT = [3 + index % 140 for index in range(5 * BLOCK + 3)]
KEY = "model.layers.2.self_attn.k_proj.weight"

Change = Callable[[Path], dict[str, Any]]
"""Changes the files of a model; returns the settings of the worker's second life."""


def _life(model: Path, fd: int | None, **settings: Any) -> ModelRunner:
    table: dict[str, Any] = {
        "name": "w",
        "model": str(model),
        "serves": "m",
        "gateways": (),
        "max_seqs": 4,
        "token_budget": 256,
        "device": "cpu",
        "block_size": BLOCK,
        "kv_tokens": 32 * BLOCK,
        "cache": CacheConfig("0" if fd is None else "16MiB"),
        **settings,
    }
    return load_runner(WorkerConfig(**table), lambda *_: None, cache_fd=fd)


def _served(runner: ModelRunner) -> tuple[list[int], int, int]:
    """The answer, how many of its prompt's tokens were found, and what the engine began with."""
    drive = Drive(runner, token_budget=64, max_seqs=2, num_blocks=32)
    number = drive.submit(PROMPT, GREEDY)
    drive.finish()
    found = drive.answers[number]
    recovered = 0 if drive.tier is None else drive.tier.num_recovered
    return found.outputs, found.cached_tokens, recovered


def _second_life(
    model: Path, change: Change, request: pytest.FixtureRequest, **first: Any
) -> tuple[int, int]:
    """What a second life finds of the first, which has answered `PROMPT`; its answer is that of an
    engine that finds nothing.
    """
    fd = os.memfd_create("herma-cache")
    request.addfinalizer(lambda: os.close(fd))
    _served(_life(model, fd, **first))
    settings = {**first, **change(model)}
    expected, *_ = _served(_life(model, None, **settings))
    answer, found, recovered = _served(_life(model, fd, **settings))
    assert answer == expected
    return found, recovered


def _large(tmp_path: Path) -> Path:
    """Twelve MiB, of which the middle layers' keys lie neither at an end nor in the middle."""
    return write_tiny_model(
        tmp_path / "model", intermediate_size=5461, num_hidden_layers=4, shards=1
    )


def _merge(model: Path) -> dict[str, Any]:
    """Change one matrix of a layer in place, as a merged adapter does; keep the file's times."""
    path = model / "model.safetensors"
    before = path.stat()
    tensors = load_file(path)
    tensors[KEY] = tensors[KEY] + 0.5 * torch.randn(
        tensors[KEY].shape, generator=torch.Generator().manual_seed(5)
    )
    save_file(tensors, path, metadata={"format": "pt"})
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return {}


def _widen(_: Path) -> dict[str, Any]:
    """A longer window, for which longrope turns all keys otherwise."""
    return {"context_length": 2048}


def _narrow(_: Path) -> dict[str, Any]:
    return {"context_length": 400}


def _in_16_bits(_: Path) -> dict[str, Any]:
    return {"dtype": "bfloat16"}


def _in_8_bits(_: Path) -> dict[str, Any]:
    return {"quantization": "fp8"}


def _turn_slower(model: Path) -> dict[str, Any]:
    path = model / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "rope_theta": 20_000.0}))
    return {}


def _retell(model: Path) -> dict[str, Any]:
    """Write other text files, and the same files of weights again."""
    (model / "tokenizer.json").write_text("{}")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes())
    return {}


@pytest.mark.parametrize("change", [_merge, _in_16_bits, _in_8_bits, _turn_slower])
def test_another_model_behind_the_same_path_finds_nothing(
    tmp_path: Path, request: pytest.FixtureRequest, change: Change
) -> None:
    assert _second_life(_large(tmp_path), change, request) == (0, 0)


def test_a_window_that_changes_the_rotation_is_another_model(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Longrope has other divisors beyond the original window: cached keys are turned by them."""
    model = write_family(tmp_path, "phi4-mini")
    found = _second_life(model, _widen, request, context_length=1024)
    assert found == (0, 0)


def test_an_index_that_names_other_files_is_another_model(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """All files stay as they are."""
    model = write_tiny_model(tmp_path / "model", num_hidden_layers=4, shards=2)
    index = model / "model.safetensors.index.json"
    other = dict(load_file(model / "model-00001-of-00002.safetensors"))
    shape = (32, 48)
    other[KEY] = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    save_file(other, model / "model-00003-of-00003.safetensors", metadata={"format": "pt"})

    def point(_: Path) -> dict[str, Any]:
        told = json.loads(index.read_text())
        told["weight_map"][KEY] = "model-00003-of-00003.safetensors"
        index.write_text(json.dumps(told))
        return {}

    assert _second_life(model, point, request) == (0, 0)


@pytest.mark.parametrize("change", [_retell, _narrow])
def test_what_computes_the_same_is_the_same_model(
    tmp_path: Path, request: pytest.FixtureRequest, change: Change
) -> None:
    found, recovered = _second_life(_large(tmp_path), change, request)
    assert found == len(PROMPT) // BLOCK * BLOCK
    assert recovered == found // BLOCK


def test_an_engine_that_drafts_finds_what_its_forerunner_stored(
    request: pytest.FixtureRequest,
) -> None:
    """The shipped model with its network, whose rows lie in the pages too."""
    model = Path("builtin:herma-tiny")
    found, recovered = _second_life(model, lambda _: {}, request, speculation="auto")
    assert (found, recovered) == (5 * BLOCK, 5)


def test_memory_that_keys_and_values_will_take_is_not_left_to_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that keys and values will take is not left to the cache: on a CPU they take it when
    they are written, which is after the start.
    """
    model = write_tiny_model(tmp_path / "model")
    monkeypatch.setattr(sizing, "host_room", lambda: MemoryRoom(40 * 2**20, "the kernel"))
    runner = load_tiny(model, kv_tokens=50_000, cache=CacheConfig("8MiB"))
    assert runner.cache.num_bytes() > 24 * 2**20
    with pytest.raises(ConfigError, match=r"cache.host needs 20.0 MiB, but the kernel leaves 15"):
        load_tiny(model, kv_tokens=50_000, cache=CacheConfig("20MiB"))


def test_every_byte_of_every_tensor_is_in_the_hash() -> None:
    """Every byte of every tensor of any form is in the hash; bytes beside it in its memory are
    not.
    """
    draw = torch.Generator().manual_seed(1)
    memory = torch.randint(0, 256, (4099,), generator=draw, dtype=torch.uint8)
    tensors = [
        memory[3:1003],
        memory[1004:2004].view(torch.bfloat16).view(20, 25).T,
        memory[2004:2005],
        memory[2008:4056].view(torch.float32).view(16, 32)[:, :30],
        torch.tensor(7),
        torch.empty(0),
    ]
    expected = hash_of(tensors)
    for at in (3, 500, 1002, 1004, 1505, 2003, 2004, 2008, 2127, 4047):
        memory[at] ^= 1
        assert hash_of(tensors) != expected, at
        memory[at] ^= 1
    for at in (0, 1003, 2006, 2128, 4098):
        memory[at] ^= 1
        assert hash_of(tensors) == expected, at
        memory[at] ^= 1
    assert hash_of(tensors[::-1]) != expected
    assert hash_of([memory[3:1003].view(10, 100), *tensors[1:]]) != expected
    assert hash_of([*tensors[:1], tensors[1].view(torch.float16), *tensors[2:]]) != expected
