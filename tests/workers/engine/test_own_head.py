"""With `speculation = "auto"` the head of a checkpoint drafts, or the log says why it does not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from benchmarks.drive import Drive
from config import SpeculationConfig, WorkerConfig
from protocol.errors import ConfigError
from tests.fakes.tiny_drafters import MTP, add_gated_head, mtp_shapes, random_drafter
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.invariant_cases import requests, serve
from workers.engine import division
from workers.engine.drafting.speculating import drafting_of, kept_speculation, speculation_for
from workers.engine.runner import ModelRunner
from workers.memory_room import MemoryRoom

SIZES: dict[str, Any] = {"kv_tokens": 2048, "block_size": 16, "dtype": "float32"}
LEFT_OUT = 'speculation = "auto": drafts come from earlier text, not from an MTP head: '


def _write(path: Path, **changes: Any) -> Path:
    """A dense model with a head beside its tensors."""
    write_tiny_model(path, num_hidden_layers=5, mtp_num_hidden_layers=1, **changes)
    own = load_file(path / "model.safetensors")
    head = random_drafter(mtp_shapes(_wide(path)))
    save_file({**own, **head}, path / "model.safetensors", metadata={"format": "pt"})
    return path


def _wide(path: Path) -> dict[str, Any]:
    """The head's sizes, of a layer like the model's."""
    size = json.loads((path / "config.json").read_text())["intermediate_size"]
    return MTP | {"intermediate_size": size}


def _config(path: Path) -> WorkerConfig:
    return WorkerConfig("w", str(path), "m", (), token_budget=256, speculation="auto")


def _drafter(runner: ModelRunner) -> str | None:
    return None if runner.drafter is None else runner.drafter.name


@pytest.mark.parametrize(
    ("family", "changes"),
    [("qwen3_5", {}), ("qwen3_5_moe", {}), ("qwen3_next", {"mlp_only_layers": []})],
)
def test_the_head_of_a_hybrid_drafts_and_changes_no_text(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """The head of a hybrid drafts and changes no text, as the checkpoints of Qwen3.5 and 3.6 and of
    Qwen3-Next have it, with experts or without. Its fit is recorded under the model.
    """
    path = write_family(tmp_path / "model", family, **changes)
    add_gated_head(path)
    asked = requests(4, 30, 151, 60)
    expected = serve(Drive(load_tiny(path, snapshots=16, **SIZES)), asked)
    runner = load_tiny(path, snapshots=16, speculation="auto", **SIZES)
    config = _config(path)
    chosen = drafting_of(config, runner)
    assert (_drafter(runner), chosen and chosen.drafter) == ("mtp", str(path))
    speculation, record = kept_speculation(config, runner, {"XDG_STATE_HOME": str(tmp_path)})
    assert speculation is not None
    assert serve(Drive(runner, proposer=speculation), asked) == expected
    assert sum(speculation.counters.verified) > 0
    assert record is not None


def test_a_head_shares_the_embedding_and_the_output_head(tmp_path: Path) -> None:
    """A head shares the model's embedding and output head in the same file: a second output head of
    a 27B would take 2.4 GiB.
    """
    path = _write(tmp_path / "model", tie_word_embeddings=False)
    assert "lm_head.weight" in load_file(path / "model.safetensors")
    runner = load_tiny(path, speculation="auto", **SIZES)
    assert runner.drafter is not None
    sizes = [tensor.nbytes for tensor in random_drafter(mtp_shapes(_wide(path))).values()]
    assert runner.drafter.num_bytes < sum(sizes) + runner.model.weights.head.nbytes // 2


def test_a_model_without_a_head_drafts_from_earlier_text(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A model without a head drafts from earlier text, without a line in the log."""
    path = write_tiny_model(tmp_path)
    runner = load_tiny(path, speculation="auto", **SIZES)
    chosen = drafting_of(_config(path), runner)
    assert (_drafter(runner), chosen and chosen.drafter) == (None, "suffix")
    assert speculation_for(_config(path), runner) is not None
    assert LEFT_OUT not in capfd.readouterr().err


def _without_tensors(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}
    save_file(own, path / "model.safetensors", metadata={"format": "pt"})


def _without_one(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    del tensors["mtp.fc.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def _with_two_layers(path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"mtp_num_hidden_layers": 2}))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_without_tensors, "has no tensors mtp.*"),
        (_without_one, "no tensor mtp.fc.weight"),
        (_with_two_layers, "mtp_num_hidden_layers = 2 is not supported"),
    ],
)
def test_a_head_that_cannot_be_used_is_left_out(
    spoil: Callable[[Path], None],
    reason: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The worker serves all the same. Who names it as the drafter gets the error."""
    path = _write(tmp_path / "model")
    assert _drafter(load_tiny(path, speculation="auto", **SIZES)) == "mtp"
    spoil(path)
    assert _drafter(load_tiny(path, speculation="auto", **SIZES)) is None
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith(LEFT_OUT)]
    assert len(lines) == 1
    assert reason in lines[0]


def test_a_head_takes_nothing_that_the_configuration_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A head takes nothing that the configuration asks for: where keys and values of the model
    alone just fit, there is no place for the head's.
    """
    path = _write(tmp_path / "model")
    plain = load_tiny(path, **SIZES)
    just = plain.cache.num_bytes()
    monkeypatch.setattr(division, "room", lambda *_: MemoryRoom(just + just // 10, "the test"))
    assert _drafter(load_tiny(path, speculation="auto", **SIZES)) is None
    assert f"{LEFT_OUT}beside it " in capfd.readouterr().err
    with pytest.raises(ConfigError, match="lower kv_tokens"):
        load_tiny(path, speculation=SpeculationConfig(str(path)), **SIZES)
