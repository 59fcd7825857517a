"""The engine without a model: deterministic, paced, light."""

import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from config import WorkerConfig
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from tests.fakes.worker_process import write_model_dir
from workers.model_dir import builtin_dir, read_vocab_size
from workers.replay.synthetic import Pace, load_synthetic, read_vocabulary
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan

STEP_S = 0.02


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
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@given(st.lists(st.floats(0.0, 0.9 * STEP_S), min_size=1, max_size=200))
def test_late_sleeps_do_not_add_up(lateness_s: list[float]) -> None:
    """However late each sleep returns, the n-th step ends n steps after the start."""
    pace = Pace(STEP_S)
    now = 1000.0
    for number, late_s in enumerate(lateness_s, start=1):
        due_at = pace.next_due(now)
        assert abs(due_at - (1000.0 + number * STEP_S)) < 1e-6
        now = due_at + late_s


def test_a_pause_begins_anew() -> None:
    """The first step after it is a whole one, and nothing is caught up."""
    pace = Pace(STEP_S)
    assert pace.next_due(5.0) == 5.0 + STEP_S
    assert pace.next_due(9.0) == 9.0 + STEP_S


def test_without_a_step_time_nothing_waits() -> None:
    """Without a step time nothing waits: the engine is as fast as the machine."""
    pace = Pace(0.0)
    assert [pace.next_due(now) for now in (1.0, 1.0, 2.5)] == [1.0, 1.0, 2.5]


def test_an_answer_has_as_many_words_as_tokens() -> None:
    """An answer has as many words as tokens, so that its text alone tells a client how many tokens
    came, and which.
    """
    model_dir = builtin_dir("builtin:herma-tiny")
    vocabulary = read_vocabulary(model_dir)
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids = [vocabulary.at(7, index) for index in range(500)]
    text = tokenizer.decode(ids)
    assert len(text.split()) == 500
    assert text.split() == [tokenizer.decode([token_id]).strip() for token_id in ids]
    assert ids != [vocabulary.at(8, index) for index in range(500)]


def test_a_vocabulary_without_words_is_used_as_it_is(tmp_path: Path) -> None:
    """All ordinary tokens, but no added one and no end of an answer."""
    assert list(read_vocabulary(write_model_dir(tmp_path)).ids) == list(range(256))
