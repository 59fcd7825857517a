"""Drafts for a network with recurrent states change no text: refused rows leave no trace in a
state."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.drive import Drive, fresh_runner
from config import SpeculationConfig, WorkerConfig
from protocol.sampling import SamplingParams
from tests.fakes.drafts import CardDrafts, HostDrafts, KnownDrafter, Mood
from tests.fakes.tiny_drafters import add_gated_head
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny
from tests.workers.engine.invariant_cases import Answers, Asked, requests, serve
from tests.workers.engine.step_cases import as_on_card
from workers.engine.drafting.drafter import Drafter
from workers.engine.drafting.speculating import speculation_for
from workers.engine.graphs.capture import run_again
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.runner import ModelRunner
from workers.engine.step.host_steps import HostSteps
from workers.scheduler.saving import SavePolicy

BLOCK = 16
FINE = SavePolicy(BLOCK, every=2 * BLOCK, least=BLOCK, along=BLOCK, along_drafts=2 * BLOCK)
FEW_BLOCKS = 9
GREEDY_60 = SamplingParams(60, temperature=0.0, ignore_eos=True)
PENALISED = {"presence_penalty": 0.5, "repetition_penalty": 1.2}
STYLES = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.0, **PENALISED},
    {"temperature": 0.8, "logprobs": 2, "top_p": 0.9},
)


ON_CARD = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    ],
)


def often(*values: object) -> list[object]:
    """Cases of every run."""
    return [*values]


def seldom(*values: object) -> list[object]:
    """Cases of long runs."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.fixture(name="runner", scope="module")
def _runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
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


def _verifying(runner: ModelRunner, drafter: Drafter | None = None) -> ModelRunner:
    bare = fresh_runner(runner)
    steps = HostSteps(bare.model, bare.cache, bare.facts, drafter, verifies=True)
    return ModelRunner(bare.model, bare.cache, bare.facts, bare.model_dir, steps)


def _in_graphs(runner: ModelRunner, drafter: Drafter | None = None) -> ModelRunner:
    """As on a card, or on one, where every graph is captured."""
    bare = as_on_card(runner)
    capture = None if bare.model.device.type == "cuda" else run_again
    steps = DeviceSteps(bare.model, bare.cache, bare.facts, capture, drafter=drafter, verifies=True)
    while steps.prepare(pending_only=False):
        pass
    return ModelRunner(bare.model, bare.cache, bare.facts, bare.model_dir, steps)


def _expected(runner: ModelRunner, asked: Sequence[Asked]) -> Answers:
    return serve(Drive(fresh_runner(runner), save_policy=FINE), asked)


def _host(
    runner: ModelRunner, texts: Sequence[list[int]], depth: int, mood: Mood, **limits: int
) -> tuple[Drive, HostDrafts]:
    proposer = HostDrafts(texts, depth, mood, vary=mood is Mood.MIXED)
    return Drive(_verifying(runner), proposer=proposer, save_policy=FINE, **limits), proposer


@pytest.mark.parametrize("depth", [*often(3), *seldom(1, 7, 15)])
def test_no_draft_changes_a_text(runner: ModelRunner, depth: int) -> None:
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
def test_batches_of_any_size(runner: ModelRunner, size: int) -> None:
    """Sequences with drafts beside those without."""
    asked = _asked(8, max_tokens=24)[:size]
    expected = _expected(runner, asked)
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    assert serve(_host(runner, texts, 7, Mood.MIXED)[0], asked) == expected


def test_chunks_hits_and_preemptions(runner: ModelRunner) -> None:
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
def test_a_stream_resumes_at_every_token(runner: ModelRunner) -> None:
    """A stream resumes at every token: its outputs so far are prompt then, cut into chunks of
    64.
    """
    asked = _asked(3, max_tokens=10)
    expected = _expected(runner, asked)
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    for num_done in range(1, 10):
        done = [answer[:num_done] for answer in expected]
        plain = serve(Drive(fresh_runner(runner), save_policy=FINE), asked, done)
        assert serve(_host(runner, texts, 3, Mood.MIXED)[0], asked, done) == plain


@pytest.mark.parametrize("mood", [*often(Mood.MIXED), *seldom(Mood.RIGHT, Mood.WRONG)])
def test_drafts_of_a_network_change_no_text(runner: ModelRunner, mood: Mood) -> None:
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


@pytest.mark.parametrize("mood", [*often(Mood.MIXED), *seldom(Mood.RIGHT)])
def test_the_turn_behind_an_answer_begins_within_it(runner: ModelRunner, mood: Mood) -> None:
    """However drafts fall around the places where its state is saved; and it says what it says of
    a cold prompt.
    """
    asked = [one._replace(sampling=GREEDY_60) for one in requests(2, 60, 151, 60)]
    texts = [
        one.prompt + answer for one, answer in zip(asked, _expected(runner, asked), strict=True)
    ]
    drive, _ = _host(runner, texts, 5, mood)
    serve(drive, asked)
    longer = [one._replace(prompt=[*text, 3, 5]) for one, text in zip(asked, texts, strict=True)]
    before = len(drive.answers)
    assert serve(drive, longer) == [serve(Drive(fresh_runner(runner)), [one])[0] for one in longer]
    # One place is passed by drafts, then up to the next on the grid of those that are led to.
    most = FINE.along + 5 + FINE.along_drafts
    for number, text in enumerate(texts, before):
        assert len(text) - 1 - drive.answers[number].cached_tokens <= most


def test_more_drafts_than_rings_hold_are_cut(runner: ModelRunner) -> None:
    """More drafts than rings hold are cut to fifteen, and the text is the same."""
    asked = _asked(2, max_tokens=40)
    expected = _expected(runner, asked)
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    drive, proposer = _host(runner, texts, 30, Mood.RIGHT)
    assert serve(drive, asked) == expected
    assert max(right for _, right in proposer.accepted) == 15


@pytest.mark.parametrize("on", ["cpu", *seldom("like a card"), ON_CARD])
@pytest.mark.parametrize("depth", [*often(3), *seldom(1, 7)])
def test_a_head_in_the_checkpoint_drafts_for_its_hybrid(
    tmp_path: Path, depth: int, on: str
) -> None:
    """From the worker's configuration on: as `herma worker` starts it. Of random weights hardly any
    draft is right, and some are. On a card its passes are graphs.
    """
    path = write_family(tmp_path / "model", "qwen3_5")
    add_gated_head(path)
    chosen = SpeculationConfig(drafter=str(path), depth=depth)
    sizes = {"kv_tokens": 2048, "block_size": BLOCK, "token_budget": 512, "snapshots": 16}
    device = "cuda" if on == "cuda" else "cpu"
    runner = load_tiny(path, dtype="float32", device=device, speculation=chosen, **sizes)
    asked = _asked(4, max_tokens=40)
    plain = load_tiny(path, dtype="float32", device=device, **sizes)
    config = WorkerConfig("w", str(path), "m", (), token_budget=512, speculation=chosen)
    if on != "cpu":
        plain, runner = as_on_card(plain), _in_graphs(runner, runner.drafter)
    expected = serve(Drive(plain, looks_ahead=on != "cpu", save_policy=FINE), asked)
    speculation = speculation_for(config, runner)
    assert speculation is not None
    drive = Drive(runner, looks_ahead=on != "cpu", proposer=speculation, save_policy=FINE)
    for _ in range(1 if on == "cpu" else 2):
        assert serve(drive, asked) == expected
        while runner.prepare(pending_only=True):
            pass
    assert sum(speculation.counters.verified) > 100
    assert runner.state_bytes > plain.state_bytes


@pytest.mark.parametrize("on", ["like a card", ON_CARD])
@pytest.mark.parametrize("depth", [*often(3), *seldom(1, 15)])
def test_drafts_in_graphs_change_no_text(runner: ModelRunner, depth: int, on: str) -> None:
    """Drafts of the host and of a network change no text in graphs, beside prompts and behind steps
    without drafts, a step ahead; blocks run out, prefixes are found, and their states are.
    """
    if on == "cuda":
        sizes = {"kv_tokens": 2048, "block_size": BLOCK, "token_budget": 512, "snapshots": 16}
        runner = load_tiny(runner.model_dir, dtype="float32", device="cuda", **sizes)
    asked = _asked(6)
    expected = serve(Drive(as_on_card(runner), looks_ahead=True, save_policy=FINE), asked)
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    limits = {"token_budget": 64, "num_blocks": FEW_BLOCKS, "save_policy": FINE}
    for mood in (Mood.RIGHT, Mood.MIXED):
        proposers = (
            (HostDrafts(texts, depth, mood, vary=mood is Mood.MIXED), None),
            (
                CardDrafts(depth, vary=mood is Mood.MIXED),
                KnownDrafter(texts, depth, mood, runner.model.config.num_layers),
            ),
        )
        for proposer, drafter in proposers:
            drive = Drive(
                _in_graphs(runner, drafter), looks_ahead=True, proposer=proposer, **limits
            )
            assert serve(drive, asked) == expected, mood
            assert serve(drive, asked) == expected, mood
            assert drive.num_preemptions > 0
            assert proposer.accepted
            if mood is Mood.RIGHT:
                assert sum(right for _, right in proposer.accepted) > 0
