"""Drafts change no text: whatever they are, wherever they come from, and whatever else happens."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pytest

from benchmarks.drive import Drive, fresh_runner
from protocol.sampling import SamplingParams
from tests.fakes.drafts import CardDrafts, HostDrafts, KnownDrafter, Mood, Text
from tests.fakes.pairs import each_once
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.invariant_cases import Answers, Asked, requests, serve
from workers.engine.graphs.capture import run_again
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.runner import ModelRunner
from workers.engine.step.host_steps import HostSteps
from workers.speculation import (
    NUM_TEXT_SOURCES,
    CardSource,
    DraftDepth,
    MatchOdds,
    PlaceOdds,
    Speculation,
    SpeculationPolicy,
    TextSource,
)

DEPTHS = (1, *(pytest.param(depth, marks=pytest.mark.slow) for depth in (3, 7)), 15)
"""Other tests draft 3 and 7 at once."""
FEW_BLOCKS = 11
PENALISED = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
STYLES = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.0, **PENALISED},
    {"temperature": 0.8, "logprobs": 2, **PENALISED},
    {"temperature": 0.8, "logprobs": 0},
)


@pytest.fixture(name="runner", scope="module")
def _runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    model_dir = write_tiny_model(tmp_path_factory.mktemp("model"))
    return load_tiny(model_dir, block_size=16, kv_tokens=8192, max_seqs=16)


class Plain(NamedTuple):
    """Requests, and what they are answered without drafts."""

    asked: list[Asked]
    expected: Answers
    texts: list[Text]


def _plain(runner: ModelRunner, asked: list[Asked]) -> Plain:
    expected = serve(Drive(fresh_runner(runner)), asked)
    return Plain(asked, expected, _texts(asked, expected))


@pytest.fixture(name="seven", scope="module")
def _seven(runner: ModelRunner) -> Plain:
    return _plain(runner, _asked(7))


@pytest.fixture(name="longer", scope="module")
def _longer(runner: ModelRunner, seven: Plain) -> Plain:
    """Each goes on behind its answer."""
    pairs = zip(seven.asked, seven.texts, strict=True)
    return _plain(runner, [one._replace(prompt=text) for one, text in pairs])


@pytest.fixture(name="eight", scope="module")
def _eight(runner: ModelRunner) -> Plain:
    """Eight requests of different lengths."""
    return _plain(
        runner,
        [
            one._replace(sampling=msgspec.structs.replace(one.sampling, max_tokens=8 + 5 * number))
            for number, one in enumerate(_asked(8))
        ],
    )


def _asked(num: int, max_tokens: int = 20) -> list[Asked]:
    """Requests of every style of sampling, some with the same beginning."""
    return [
        one._replace(sampling=SamplingParams(max_tokens, ignore_eos=True, **style))
        for one, style in zip(
            requests(num, max_tokens, 151, 60), itertools.cycle(STYLES), strict=False
        )
    ]


def _texts(asked: Sequence[Asked], answers: Answers) -> list[Text]:
    return [one.prompt + answer for one, answer in zip(asked, answers, strict=True)]


def _steps(
    runner: ModelRunner, drafter: KnownDrafter | None, *, on_card: bool, is_captured: bool = True
) -> ModelRunner:
    """A runner on a cache that was never written, with steps as on a card or of the host."""
    bare = fresh_runner(runner)
    steps: DeviceSteps | HostSteps
    if on_card:
        capture = run_again
        steps = DeviceSteps(
            bare.model, bare.cache, bare.facts, capture, drafter=drafter, verifies=True
        )
        while is_captured and steps.prepare(pending_only=False):
            pass
    else:
        steps = HostSteps(bare.model, bare.cache, bare.facts, drafter)
    return ModelRunner(bare.model, bare.cache, bare.facts, bare.model_dir, steps)


SOURCES = ("host drafts", "host drafts, card", "card drafts", "card drafts, card")


def _drive(
    runner: ModelRunner,
    texts: Sequence[Text],
    source: str,
    depth: int,
    mood: Mood,
    **limits: int | None,
) -> tuple[Drive, HostDrafts]:
    """With drafts of the host or of a drafter, in steps of the host or of a card."""
    on_card = source.endswith("card")
    if source.startswith("host"):
        proposer, drafter = HostDrafts(texts, depth, mood, vary=mood is Mood.MIXED), None
    else:
        proposer, drafter = CardDrafts(depth), KnownDrafter(texts, depth, mood)
    stepping = _steps(runner, drafter, on_card=on_card)
    return Drive(stepping, proposer=proposer, looks_ahead=on_card, **limits), proposer


@pytest.mark.parametrize(
    ("source", "depth"),
    [
        *each_once(SOURCES, (1, 15)),
        *[pytest.param(*one, marks=pytest.mark.slow) for one in itertools.product(SOURCES, (3, 7))],
    ],
)
def test_no_draft_changes_a_text(
    runner: ModelRunner, seven: Plain, source: str, depth: int
) -> None:
    """Right, wrong, random and mixed ones, for every style of sampling at once."""
    asked, expected, texts = seven
    for mood in Mood:
        drive, proposer = _drive(runner, texts, source, depth, mood)
        assert serve(drive, asked) == expected, mood
        drafted = [num for num, _ in proposer.accepted]
        accepted = [num for _, num in proposer.accepted]
        assert mood is Mood.MIXED or max(drafted) == depth
        if mood is Mood.RIGHT:
            assert accepted == drafted
        if mood is Mood.WRONG:
            assert sum(accepted) == 0


@pytest.mark.parametrize("source", SOURCES)
def test_batches_of_any_size(runner: ModelRunner, eight: Plain, source: str) -> None:
    """Batches of one to eight sequences, which end one after the other."""
    asked, expected, texts = eight
    for size in range(1, 9):
        drive, _ = _drive(runner, texts, source, 7, Mood.MIXED)
        assert serve(drive, asked[:size]) == expected[:size]


@pytest.mark.parametrize("is_captured", [True, False], ids=["graphs", "no graphs"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_steps_ahead_of_accepted_drafts(
    runner: ModelRunner, longer: Plain, depth: int, is_captured: bool
) -> None:
    """Launched before it is known how many drafts the step before accepts: of any size, behind
    prompts in chunks and cached ones, beside answers that end, as far as blocks last.
    """
    styles = ({"temperature": 0.0}, {"temperature": 0.8}, {"temperature": 0.8, "top_k": 20})
    asked = [
        one._replace(sampling=SamplingParams(9 + 7 * number, ignore_eos=True, **style))
        for number, (one, style) in enumerate(
            zip(longer.asked, itertools.cycle(styles), strict=False)
        )
    ]
    _, expected, texts = _plain(runner, asked)
    for mood in (Mood.RIGHT, Mood.MIXED, Mood.WRONG):
        proposer, drafter = (
            CardDrafts(depth, vary=mood is Mood.WRONG),
            KnownDrafter(texts, depth, mood),
        )
        stepping = _steps(runner, drafter, on_card=True, is_captured=is_captured)
        drive = Drive(stepping, proposer=proposer, looks_ahead=True, token_budget=200)
        assert serve(drive, asked) == expected
        assert serve(drive, asked[:1]) == expected[:1]
        assert proposer.num_ahead > 2
    proposer, drafter = CardDrafts(depth), KnownDrafter(texts, depth, Mood.MIXED)
    stepping = _steps(runner, drafter, on_card=True, is_captured=is_captured)
    scarce = Drive(stepping, proposer=proposer, looks_ahead=True, num_blocks=FEW_BLOCKS)
    assert serve(scarce, asked) == expected


@pytest.mark.parametrize("source", SOURCES)
def test_chunks_hits_and_preemptions(
    runner: ModelRunner, seven: Plain, longer: Plain, source: str
) -> None:
    """Prompts in chunks beside drafts, prompts that find others' blocks, blocks that run out: what
    is cached is what was accepted, or a later answer would differ.
    """
    asked, expected, texts = seven
    for depth in (3, 15):
        limits = {"token_budget": 40, "num_blocks": FEW_BLOCKS}
        drive, _ = _drive(runner, texts, source, depth, Mood.MIXED, **limits)
        assert serve(drive, asked) == expected
        assert drive.num_preemptions > 0
        assert serve(drive, asked) == expected
        if source.startswith("host"):
            assert serve(drive, longer.asked) == longer.expected


def test_a_stream_resumes_at_every_token(runner: ModelRunner) -> None:
    """A stream resumes at every token, on a worker that drafts, after one that did not."""
    asked = _asked(6, max_tokens=12)
    expected = serve(Drive(fresh_runner(runner)), asked)
    texts = _texts(asked, expected)
    for num_done in range(1, 12):
        drive, _ = _drive(runner, texts, "host drafts", 3, Mood.MIXED)
        assert serve(drive, asked, [answer[:num_done] for answer in expected]) == expected


def test_choices_of_one_prompt_differ_as_without_drafts(runner: ModelRunner) -> None:
    """`n`: they differ by their seeds alone."""
    sampling = SamplingParams(max_tokens=16, temperature=1.0, ignore_eos=True)
    asked = [Asked([5, 9, 2] * 7, sampling, seed) for seed in range(6)]
    expected = serve(Drive(fresh_runner(runner)), asked)
    assert len({tuple(answer) for answer in expected}) == 6
    drive, _ = _drive(runner, _texts(asked, expected), "card drafts, card", 7, Mood.MIXED)
    assert serve(drive, asked) == expected


@pytest.mark.parametrize("source", ["host drafts", "card drafts, card"])
def test_a_stop_token_among_accepted_drafts_ends_the_answer(
    runner: ModelRunner, source: str
) -> None:
    """What was accepted behind it is neither sent nor counted."""
    (asked,) = _asked(1)
    (expected,) = serve(Drive(fresh_runner(runner)), [asked])
    stop = next(token_id for token_id in expected if expected.index(token_id) > 3)
    sampling = msgspec.structs.replace(asked.sampling, stop_token_ids=(stop,))
    drive, _ = _drive(runner, _texts([asked], [expected]), source, 15, Mood.RIGHT)
    (answer,) = serve(drive, [asked._replace(sampling=sampling)])
    assert answer == expected[: expected.index(stop)]
    finished = drive.answers[0].finished
    assert finished is not None
    assert (finished.reason, finished.matched) == ("stop", stop)
    assert finished.output_tokens == len(answer) + 1


@pytest.mark.parametrize("depth", [None, 5])
@pytest.mark.parametrize("on_card", [False, True])
def test_drafts_from_earlier_text(runner: ModelRunner, on_card: bool, depth: int | None) -> None:
    """A greedy model that repeats itself takes fewer steps, and says the same."""
    greedy = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    asked = [Asked([5 + number, 9, 2] * 7, greedy, number) for number in range(4)]
    plain = Drive(fresh_runner(runner))
    expected = serve(plain, asked)
    stepping = _steps(runner, None, on_card=on_card)
    source = TextSource(MatchOdds(NUM_TEXT_SOURCES), uses_fleet=True)
    speculation = Speculation(source, SpeculationPolicy(looks_ahead=on_card), depth)
    drive = Drive(stepping, proposer=speculation, looks_ahead=on_card)
    assert serve(drive, asked) == expected
    assert serve(drive, asked) == expected
    assert drive.num_steps < 0.6 * 2 * plain.num_steps
    counters = speculation.counters
    assert counters.num_tokens == 2 * 4 * 59
    assert counters.num_tokens == counters.num_passes + sum(counters.accepted)
    assert counters.num_passes < 0.6 * counters.num_tokens


@pytest.mark.parametrize("mood", [Mood.RIGHT, Mood.WRONG])
@pytest.mark.parametrize("on_card", [False, True])
def test_a_network_drafts_where_that_pays(runner: ModelRunner, on_card: bool, mood: Mood) -> None:
    """Every step takes a second, with drafts or without: good ones are made behind most of them. Of
    bad ones it may have fewer at once, or others, and no text changes.
    """
    asked = _asked(4, max_tokens=60)
    expected = serve(Drive(fresh_runner(runner)), asked)
    drafter = KnownDrafter(_texts(asked, expected), 7, mood)
    policy, odds = SpeculationPolicy(looks_ahead=on_card), PlaceOdds(7)
    depth = DraftDepth(odds, policy, 7)
    speculation = Speculation(CardSource("known", odds), policy, draft_depth=depth)
    stepping = _steps(runner, drafter, on_card=on_card)
    drive = Drive(stepping, proposer=speculation, looks_ahead=on_card)
    assert serve(drive, asked) == expected
    num_drafts = sum(speculation.counters.verified)
    assert num_drafts > 0
    if mood is Mood.RIGHT:
        assert drive.num_steps < 40
        assert sum(speculation.counters.accepted) == num_drafts
    assert depth.times.export()
