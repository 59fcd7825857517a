"""On = off, byte for byte, for the built-in model: every depth, place of drafts, circumstance."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from benchmarks.drive import Drive, fresh_runner
from protocol.messages import Grammar
from protocol.sampling import SamplingParams
from tests.fakes.drafts import CardDrafts, HostDrafts, KnownDrafter, Mood
from tests.fakes.tiny_models import load_tiny
from workers.engine.drafting.drafter import Drafter
from workers.engine.grammar.compiler import LlGuidanceCompiler
from workers.engine.graphs.capture import run_again
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.runner import ModelRunner
from workers.engine.step.host_steps import HostSteps
from workers.model_dir import builtin_dir
from workers.scheduler import Proposer

BLOCK = 16
FEW_BLOCKS = 11
GREEDY = {"temperature": 0.0}
DRAWN = {"temperature": 0.8}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
DIGITS = Grammar("regex", "[0-9]{6,24}")
WORDS = Grammar("json_schema", '{"type": "array", "items": {"type": "string", "maxLength": 6}}')


class Asked(NamedTuple):
    """One request; `known` is what earlier attempts have said."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    grammar: Grammar | None = None
    known: tuple[int, ...] = ()


class Cell(NamedTuple):
    """Where drafts come from, how many, how good."""

    on_card: bool
    steps_ahead: bool
    depth: int
    mood: Mood


@pytest.fixture(name="runner", scope="module")
def _runner() -> ModelRunner:
    path = builtin_dir("builtin:herma-tiny")
    return load_tiny(path, block_size=BLOCK, kv_tokens=4096, max_seqs=16, dtype="float32")


@pytest.fixture(name="compiler", scope="module")
def _compiler(runner: ModelRunner) -> LlGuidanceCompiler:
    vocab_size = runner.model.config.vocab_size
    return LlGuidanceCompiler(runner.model_dir, vocab_size, runner.eos_ids)


def _asked(max_tokens: int = 20) -> list[Asked]:
    """Eight: both temperatures, penalties, grammars, log-probabilities, and three choices of one
    prompt, two of which begin as another does.
    """
    styles: list[tuple[dict[str, float], Grammar | None]] = [
        (GREEDY, None), (DRAWN, None), (GREEDY | PENALTIES, None), (DRAWN | PENALTIES, DIGITS),
        (DRAWN, WORDS), (DRAWN | {"logprobs": 2}, None), (DRAWN, None), (DRAWN, None),
    ]  # fmt: skip
    return [
        Asked(
            tuple(range(20, 60 + min(seed, 5) * 7)),
            SamplingParams(max_tokens=max_tokens, ignore_eos=True, **style),  # type: ignore[arg-type]
            seed,
            grammar,
        )
        for seed, (style, grammar) in enumerate(styles)
    ]


def _serve(drive: Drive, asked: Sequence[Asked]) -> list[tuple[int, ...]]:
    numbers = [
        drive.submit(one.prompt, one.sampling, outputs=one.known, seed=one.seed,
                     grammar=one.grammar)
        for one in asked
    ]  # fmt: skip
    drive.finish()
    return [tuple(drive.answers.pop(number).outputs) for number in numbers]


def _plain(
    runner: ModelRunner, compiler: LlGuidanceCompiler, asked: Sequence[Asked]
) -> list[tuple[int, ...]]:
    return _serve(Drive(fresh_runner(runner), compiler=compiler), asked)


def _drive(
    runner: ModelRunner,
    compiler: LlGuidanceCompiler,
    cell: Cell,
    texts: Sequence[list[int]],
    **limits: int,
) -> Drive:
    """Drive an engine that drafts as the cell of the matrix says."""
    drafter: Drafter | None = None
    proposer: Proposer = HostDrafts(texts, cell.depth, cell.mood, vary=cell.mood is Mood.MIXED)
    if cell.on_card:
        layers = runner.model.config.num_layers
        drafter = KnownDrafter(texts, cell.depth, cell.mood, layers)
        proposer = CardDrafts(cell.depth, vary=cell.mood is Mood.MIXED)
    return _with(runner, compiler, drafter, proposer, ahead=cell.steps_ahead, **limits)


def _with(
    runner: ModelRunner,
    compiler: LlGuidanceCompiler,
    drafter: Drafter | None,
    proposer: Proposer,
    *,
    ahead: bool,
    **limits: int,
) -> Drive:
    bare = fresh_runner(runner)
    given = bare.model, bare.cache, bare.facts
    steps: HostSteps | DeviceSteps = HostSteps(*given, drafter)
    if ahead:
        steps = DeviceSteps(*given, run_again, drafter=drafter, verifies=True)
        while steps.prepare(pending_only=False):
            pass
    drafting = ModelRunner(*given, bare.model_dir, steps)
    return Drive(drafting, compiler=compiler, looks_ahead=ahead, proposer=proposer, **limits)


class Plain(NamedTuple):
    """Requests, and what a worker without drafts answers."""

    asked: list[Asked]
    expected: list[tuple[int, ...]]

    @property
    def texts(self) -> list[list[int]]:
        """Prompts and answers."""
        return _texts(self.asked, self.expected)


@pytest.fixture(name="plain", scope="module")
def _plain_answers(runner: ModelRunner, compiler: LlGuidanceCompiler) -> Plain:
    asked = _asked()
    return Plain(asked, _plain(runner, compiler, asked))


def _texts(asked: Sequence[Asked], answers: Sequence[tuple[int, ...]]) -> list[list[int]]:
    return [[*one.prompt, *answer, 0] for one, answer in zip(asked, answers, strict=True)]


OFTEN = Cell(on_card=True, steps_ahead=True, depth=3, mood=Mood.MIXED)
"""That of every run."""

CELLS = [
    pytest.param(
        Cell(on_card, ahead, depth, mood),
        id=f"{'card' if on_card else 'host'} drafts, {'ahead' if ahead else 'waiting'}, "
        f"K {depth}, {mood.name.lower()}",
        marks=() if (on_card, ahead, depth, mood) == OFTEN else pytest.mark.slow,
    )
    for on_card in (False, True)
    for ahead in (False, True)
    for depth in (1, 3, 7, 15)
    for mood in Mood
]


@pytest.mark.parametrize("cell", CELLS)
def test_no_text_changes(
    cell: Cell, runner: ModelRunner, compiler: LlGuidanceCompiler, plain: Plain
) -> None:
    """No text changes, in batches of one and of eight, in chunks, behind cached prefixes and after
    preemptions.
    """
    asked, expected = plain
    texts = plain.texts
    drive = _drive(runner, compiler, cell, texts, token_budget=40)
    assert _serve(drive, asked) == expected
    assert _serve(drive, asked) == expected  # their prompts are cached now
    for number in (3, 4):
        assert _serve(drive, asked[number : number + 1]) == expected[number : number + 1]
    scarce = _drive(runner, compiler, cell, texts, token_budget=48, num_blocks=FEW_BLOCKS)
    assert _serve(scarce, asked) == expected
    # With some depths answers end before blocks run out.
    assert scarce.num_preemptions > 0 or cell != OFTEN


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 3, 7, 15])
@pytest.mark.parametrize("on_card", [False, True], ids=["host drafts", "card drafts"])
def test_every_batch_from_one_to_eight(
    on_card: bool, depth: int, runner: ModelRunner, compiler: LlGuidanceCompiler
) -> None:
    """Every batch from one to eight sequences, which end one by one."""
    asked = [
        one._replace(sampling=SamplingParams(8 + 5 * number, temperature=0.8, ignore_eos=True))
        for number, one in enumerate(_asked())
    ]
    expected = _plain(runner, compiler, asked)
    for size in range(1, 9):
        drive = _drive(
            runner, compiler, Cell(on_card, True, depth, Mood.MIXED), _texts(asked, expected)
        )
        assert _serve(drive, asked[:size]) == expected[:size]


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 3, 7, 15])
@pytest.mark.parametrize("on_card", [False, True], ids=["host drafts", "card drafts"])
def test_streams_resume_at_every_token(
    on_card: bool, depth: int, runner: ModelRunner, compiler: LlGuidanceCompiler
) -> None:
    """Grammars and penalties too, on a worker that drafts, after one that did not."""
    asked = _asked(max_tokens=14)
    expected = _plain(runner, compiler, asked)
    texts = _texts(asked, expected)
    shortest = min(map(len, expected))
    for num_done in range(1, shortest):
        resumed = [
            one._replace(known=answer[:num_done])
            for one, answer in zip(asked, expected, strict=True)
        ]
        drive = _drive(runner, compiler, Cell(on_card, True, depth, Mood.MIXED), texts)
        assert _serve(drive, resumed) == expected
