"""The drafter that comes with the built-in model drafts as well as when it was trained, and changes
no text.
"""

import json
from itertools import count
from pathlib import Path

import msgspec
import pytest

from benchmarks.drive import Drive, fresh_runner
from benchmarks.speculation.measure import SpeculationLoad
from benchmarks.speculation.proposers import SwitchedProposer
from benchmarks.speculation.texts import loads_for
from config import SpeculationConfig, WorkerConfig, builtin_models
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from workers.engine.drafting.load import load_drafter
from workers.engine.drafting.speculating import speculation_for
from workers.engine.runner import DraftingSetup, ModelRunner, steps_on
from workers.engine.start import load_runner
from workers.model_dir import check_dirs, drafter_dir
from workers.speculation import Expense, Fit, Mean

MODEL = "builtin:herma-tiny"
DRAFTERS = {"mtp": 3}
"""By name, and the drafts that it was trained to make at once."""

OUTPUTS = 40


@pytest.fixture(scope="module", name="runner")
def _runner() -> ModelRunner:
    limits = {"max_seqs": 6, "token_budget": 2048, "kv_tokens": 16_384, "max_context": 2048}
    config = WorkerConfig("test", MODEL, "test", (), device="cpu", dtype="float32", **limits)
    return load_runner(config, lambda *_: None)


@pytest.fixture(scope="module", name="load")
def _load(runner: ModelRunner) -> SpeculationLoad:
    """Chats of the evaluation."""
    sampling = SamplingParams(max_tokens=OUTPUTS, temperature=0.0)
    found = loads_for(
        MODEL, runner.model_dir, (), count=6, prompt_tokens=0, sampling=sampling, vocab_size=0
    )
    return found[0]


def _serve(drive: Drive, load: SpeculationLoad) -> list[list[int]]:
    numbers = [drive.submit(prompt, load.sampling) for prompt in load.prompts]
    drive.finish()
    return [drive.answers[number].outputs for number in numbers]


def _with_drafter(kind: str, runner: ModelRunner) -> tuple[ModelRunner, Path]:
    """One that drafts by the model's own drafter of that kind, and the drafter's directory."""
    path = drafter_dir(f"{MODEL}/{kind}")
    assert path is not None
    drafter = load_drafter(path, runner.model, 2048)
    drafter.take_cache(runner.cache.num_blocks + 1, runner.cache.block_size)
    bare = fresh_runner(runner)
    given = bare.model, bare.cache, bare.facts
    steps = steps_on(*given, drafting=DraftingSetup(True, drafter))
    return ModelRunner(*given, bare.model_dir, steps, verifies=True), path


@pytest.mark.parametrize("kind", DRAFTERS)
def test_it_drafts_as_it_was_trained(kind: str, runner: ModelRunner, load: SpeculationLoad) -> None:
    """The drafter drafts as it was trained: at least half of the drafts that its training reached,
    on other texts.
    """
    drafting, path = _with_drafter(kind, runner)
    expected = _serve(Drive(fresh_runner(runner)), load)
    depth = DRAFTERS[kind]
    chosen = SpeculationConfig(drafter=f"{MODEL}/{kind}", depth=depth)
    config = WorkerConfig("test", MODEL, "test", (), token_budget=1, speculation=chosen)
    proposer = SwitchedProposer(depth)
    proposer.switch(speculation_for(config, drafting))
    assert _serve(Drive(drafting, proposer=proposer), load) == expected
    promised = json.loads((path / "config.json").read_text(encoding="utf-8"))["herma"]["length"]
    assert proposer.counts.length - 1 > 0.5 * (promised - 1)


def test_it_sleeps_where_answers_do_not_earn_what_it_costs(
    runner: ModelRunner, load: SpeculationLoad
) -> None:
    """The drafter sleeps where answers do not earn its cost, except for a first trial from which a
    new engine learns. No text changes.
    """
    drafting, _ = _with_drafter("mtp", runner)
    expected = _serve(Drive(fresh_runner(runner)), load)
    chosen = SpeculationConfig(drafter=f"{MODEL}/mtp", depth="adaptive")
    config = WorkerConfig("test", MODEL, "test", (), token_budget=1, speculation=chosen)
    dear = Fit(expense=Expense(rows=Mean(total=1000.0, number=1.0)))
    drive = Drive(
        drafting, proposer=speculation_for(config, drafting, dear), clock=count().__next__
    )
    assert _takes_in(drive, load, expected) == {True}
    assert _takes_in(drive, load, expected) == {False}


def _takes_in(drive: Drive, load: SpeculationLoad, expected: list[list[int]]) -> set[bool]:
    """What the plans of steps say that serve the load, not from the cache."""
    salt = drive.num_steps.to_bytes(8, "little")
    numbers = [drive.submit(prompt, load.sampling, salt=salt) for prompt in load.prompts]
    found = set()
    while (plan := drive.step()) is not None:
        found.add(plan.takes_in)
    assert [drive.answers[number].outputs for number in numbers] == expected
    return found


def test_a_name_that_there_is_not_is_said() -> None:
    """An unknown name is reported with those that there are; drafters are no models."""
    with pytest.raises(
        ConfigError, match=r"herma-tiny/other' is neither .* builtin:herma-tiny/mtp; "
    ):
        drafter_dir(f"{MODEL}/other")
    assert list(builtin_models()) == [MODEL]
    assert isinstance(drafter_dir(f"{MODEL}/mtp"), Path)


def test_what_a_host_lacks_is_said_before_a_start(tmp_path: Path) -> None:
    """Models and drafters that are no directories, or hold no model; a hub is not asked."""
    (tmp_path / "empty").mkdir()
    config = WorkerConfig("w", MODEL, "m", (), token_budget=1)
    check_dirs(config)
    check_dirs(WorkerConfig("w", "z-lab/none", "m", (), token_budget=1))
    for changes, says in (
        ({"model": "/none"}, "model '/none' is neither a directory"),
        ({"model": str(tmp_path / "empty")}, "config.json does not exist"),
        ({"speculation": SpeculationConfig("/none")}, "drafter '/none' is neither a directory"),
        ({"speculation": SpeculationConfig(str(tmp_path))}, "config.json does not exist"),
        ({"engine": "synthetic", "model": "/none"}, "model /none is no directory"),
    ):
        with pytest.raises(ConfigError, match=says):
            check_dirs(msgspec.structs.replace(config, **changes))
