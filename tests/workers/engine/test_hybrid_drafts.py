"""Drafts for a network with recurrent states change no text: refused rows leave no trace in a
state."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from benchmarks.drive import Drive, fresh_runner
from config import SpeculationConfig, WorkerConfig
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from tests.fakes.drafts import CardDrafts, HostDrafts, KnownDrafter, Mood
from tests.fakes.tiny_drafters import add_gated_head
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny
from tests.workers.engine.invariant_cases import Answers, Asked, requests, serve
from workers.engine.drafting.drafter import Drafter
from workers.engine.models.model_config import read_model_config
from workers.engine.runner import Runner
from workers.engine.settings import drafting
from workers.engine.speculating import speculation_for
from workers.engine.step.host_steps import HostSteps
from workers.scheduler.saving import SavePolicy

BLOCK = 16
FINE = SavePolicy(grain=BLOCK, every=2 * BLOCK, least=BLOCK)
FEW_BLOCKS = 9
PENALISED = {"presence_penalty": 0.5, "repetition_penalty": 1.2}
STYLES = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.0, **PENALISED},
    {"temperature": 0.8, "logprobs": 2, "top_p": 0.9},
)


def often(*values: object) -> list[object]:
    """Cases of every run."""
    return [*values]


def seldom(*values: object) -> list[object]:
    """Cases of long runs."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.fixture(name="runner", scope="module")
def _runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    model_dir = write_family(tmp_path_factory.mktemp("model"), "qwen3_5")
    sizes = {"kv_tokens": 2048, "block_size": BLOCK, "token_budget": 512, "snapshots": 16}
    return load_tiny(model_dir, dtype="float32", **sizes)


def _asked(num: int, max_tokens: int = 20) -> list[Asked]:
    return [
        one._replace(sampling=SamplingParams(max_tokens, ignore_eos=True, **style))
        for one, style in zip(
            requests(num, max_tokens, 151, 60), itertools.cycle(STYLES), strict=False
        )
    ]


def _verifying(runner: Runner, drafter: Drafter | None = None) -> Runner:
    bare = fresh_runner(runner)
    steps = HostSteps(bare.model, bare.cache, bare.facts, drafter, verifies=True)
    return Runner(bare.model, bare.cache, bare.facts, bare.model_dir, steps)


def _expected(runner: Runner, asked: Sequence[Asked]) -> Answers:
    return serve(Drive(fresh_runner(runner), save_policy=FINE), asked)


def _host(
    runner: Runner, texts: Sequence[list[int]], depth: int, mood: Mood, **limits: int
) -> tuple[Drive, HostDrafts]:
    proposer = HostDrafts(texts, depth, mood, vary=mood is Mood.MIXED)
    return Drive(_verifying(runner), proposer=proposer, save_policy=FINE, **limits), proposer


@pytest.mark.parametrize("depth", [*often(3), *seldom(1, 7, 15)])
def test_no_draft_changes_a_text(runner: Runner, depth: int) -> None:
    """Right, wrong, random and mixed ones, for every style of sampling at once."""
    asked = _asked(5)
    expected = _expected(runner, asked)
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    for mood in Mood:
        drive, proposer = _host(runner, texts, depth, mood)
        assert serve(drive, asked) == expected, mood
        if mood is Mood.RIGHT:
            assert sum(right for _, right in proposer.accepted) > 0
            assert all(right == made for made, right in proposer.accepted)


@pytest.mark.parametrize("size", seldom(*range(1, 9)))
def test_batches_of_any_size(runner: Runner, size: int) -> None:
    """Sequences with drafts beside those without."""
    asked = _asked(8, max_tokens=24)[:size]
    expected = _expected(runner, asked)
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    assert serve(_host(runner, texts, 7, Mood.MIXED)[0], asked) == expected


def test_chunks_hits_and_preemptions(runner: Runner) -> None:
    """What was accepted is in a state when it is saved, and when its sequence ends; a sequence that
    begins again forgets what it verified.
    """
    asked = _asked(6)
    expected = _expected(runner, asked)
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    longer = [one._replace(prompt=text) for one, text in zip(asked, texts, strict=True)]
    alone = _expected(runner, longer)
    drive, _ = _host(runner, texts, 5, Mood.MIXED, token_budget=40, num_blocks=FEW_BLOCKS)
    assert serve(drive, asked) == expected
    assert drive.num_preemptions > 0
    assert serve(drive, asked) == expected
    rich, _ = _host(runner, texts, 5, Mood.MIXED, token_budget=40)
    assert serve(rich, asked) == expected
    assert serve(rich, longer) == alone
    assert sum(answer.cached_tokens for answer in rich.answers.values()) > 0


@pytest.mark.slow
def test_a_stream_resumes_at_every_token(runner: Runner) -> None:
    """Its outputs so far are prompt then, cut into chunks of 64 as any."""
    asked = _asked(3, max_tokens=10)
    expected = _expected(runner, asked)
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    for num_done in range(1, 10):
        done = [answer[:num_done] for answer in expected]
        plain = serve(Drive(fresh_runner(runner), save_policy=FINE), asked, done)
        assert serve(_host(runner, texts, 3, Mood.MIXED)[0], asked, done) == plain


@pytest.mark.parametrize("mood", [*often(Mood.MIXED), *seldom(Mood.RIGHT, Mood.WRONG)])
def test_drafts_of_a_network_change_no_text(runner: Runner, mood: Mood) -> None:
    """Made behind each step, or behind some."""
    asked = _asked(4)
    expected = _expected(runner, asked)
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    for vary in (False, True):
        drafter = KnownDrafter(texts, 4, mood, runner.model.config.num_layers)
        proposer = CardDrafts(4, vary=vary)
        drive = Drive(_verifying(runner, drafter), proposer=proposer, save_policy=FINE)
        assert serve(drive, asked) == expected
        assert proposer.accepted


def test_more_drafts_than_rings_hold_are_cut(runner: Runner) -> None:
    """To fifteen, and the text is the same."""
    asked = _asked(2, max_tokens=40)
    expected = _expected(runner, asked)
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    drive, proposer = _host(runner, texts, 30, Mood.RIGHT)
    assert serve(drive, asked) == expected
    assert max(right for _, right in proposer.accepted) == 15


@pytest.mark.parametrize("depth", [*often(3), *seldom(1, 7)])
def test_a_head_in_the_checkpoint_drafts_for_its_hybrid(tmp_path: Path, depth: int) -> None:
    """From the worker's configuration on: as `herma worker` starts it. Of random weights hardly any
    draft is right, and some are.
    """
    path = write_family(tmp_path / "model", "qwen3_5")
    add_gated_head(path)
    chosen = SpeculationConfig(drafter=str(path), depth=depth)
    sizes = {"kv_tokens": 2048, "block_size": BLOCK, "token_budget": 512, "snapshots": 16}
    runner = load_tiny(path, dtype="float32", speculation=chosen, **sizes)
    asked = _asked(4, max_tokens=40)
    plain = load_tiny(path, dtype="float32", **sizes)
    expected = serve(Drive(plain, save_policy=FINE), asked)
    config = WorkerConfig("w", str(path), "m", (), token_budget=512, speculation=chosen)
    speculation = speculation_for(config, runner)
    assert speculation is not None
    drive = Drive(runner, proposer=speculation, save_policy=FINE)
    assert serve(drive, asked) == expected
    assert speculation.counters.num_drafts > 100
    assert runner.state_bytes > plain.state_bytes


def test_on_a_card_a_hybrid_is_refused_in_one_line(tmp_path: Path) -> None:
    """Before anything is loaded; "auto" means none there."""
    shape = read_model_config(write_family(tmp_path / "model", "qwen3_5"))
    asked = WorkerConfig("w", "m", "m", (), token_budget=8, speculation=SpeculationConfig("ngram"))
    with pytest.raises(ConfigError, match="on a card yet: remove `speculation`"):
        drafting(asked, shape, torch.device("meta"))
    auto = replace(asked, speculation="auto")
    assert drafting(auto, shape, torch.device("meta")) is None
    assert drafting(auto, shape, torch.device("cpu")) is not None
