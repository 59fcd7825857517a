"""The engine without a model: deterministic, paced, light."""

import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from config import WorkerConfig
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from tests.fakes.worker_process import write_model_dir
from workers.model_dir import read_vocab_size
from workers.replay.synthetic import load_synthetic
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan


def config(model: Path, **settings: int) -> WorkerConfig:
    """A worker of that model."""
    return WorkerConfig(
        name="w",
        model=str(model),
        serves="echo",
        gateways=(),
        max_seqs=4,
        token_budget=64,
        engine="synthetic",
        **settings,
    )


def quiet(phase: str, fraction: float, detail: str) -> None:
    """A report that goes nowhere."""


def tokens(model: Path, seed: int, start: int, length: int) -> tuple[int, ...]:
    """What a fresh runner says for one chunk."""
    runner = load_synthetic(config(model), quiet)
    sampling = SamplingParams(max_tokens=4)
    began = SequenceStart(1, array("I", range(start + length)), 5, sampling, seed)
    plan = StepPlan(1, (began,), (Chunk(1, start, length, (0,), samples=True),), ())
    (sampled,) = runner.collect(runner.launch(plan)).sampled
    return sampled.ids


def test_tokens_depend_on_seed_and_place_only(tmp_path: Path) -> None:
    """However the prompt was cut into chunks, the token at a place is the same."""
    model = write_model_dir(tmp_path)
    assert tokens(model, 7, 0, 10) == tokens(model, 7, 9, 1)
    varied = {tokens(model, seed, 0, length) for seed in range(8) for length in range(5, 13)}
    assert len(varied) > 30
    assert all(0 <= token < 256 for (token,) in varied)  # never the added token 256


def test_its_facts_come_from_the_files_and_the_configuration(tmp_path: Path) -> None:
    """The window of the model unless a smaller one is configured; whole blocks only."""
    model = write_model_dir(tmp_path)
    facts = load_synthetic(config(model, kv_tokens=1000, context_length=512), quiet).facts
    assert (facts.context_length, facts.kv_tokens, facts.block_size) == (512, 992, 32)
    assert load_synthetic(config(model), quiet).facts.context_length == 4096
    assert read_vocab_size(model) == 257


def test_a_model_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    """Missing directory, missing file, broken JSON, no room for a block: each names its place."""
    with pytest.raises(ConfigError, match="no directory"):
        load_synthetic(config(tmp_path / "none"), quiet)
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_synthetic(config(tmp_path), quiet)
    model = write_model_dir(tmp_path / "m")
    with pytest.raises(ConfigError, match="less than one block"):
        load_synthetic(config(model, kv_tokens=31), quiet)
    (model / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_synthetic(config(model), quiet)


@pytest.mark.parametrize(
    "module",
    [
        "workers.supervisor.app",
        "workers.replay.synthetic",
        "workers.replay.scripted",
        "workers.engine.__main__",
    ],
)
def test_no_torch_without_a_native_engine(module: str) -> None:
    """The supervisor and the synthetic engine start in the time of an interpreter."""
    code = f"import {module}, sys; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
