"""Drafters in the engine: no text changes, and a sequence is drafted for as if it was computed at
once, whatever became of it."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from benchmarks.drive import Drive, fresh_runner
from kernels.attention import Segment, plan_attention
from tests.fakes.drafts import CardDrafts, KnownDrafter, Mood
from tests.fakes.pairs import seldom
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.drafting.cases import made, naive_drafts
from tests.workers.engine.drafting.naive import Naive
from tests.workers.engine.invariant_cases import Answers, Asked, requests, serve
from workers.engine.drafting.drafter import Capture, CapturesDrafts, Drafted, Drafter, DraftStep
from workers.engine.graphs.capture import run_again
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.models.kv_cache import KvCache
from workers.engine.models.network import Network, Taps
from workers.engine.runner import ModelRunner
from workers.engine.step.host_steps import HostSteps
from workers.speculation import CardSource, DraftDepth, PlaceOdds, Speculation, SpeculationPolicy

NAMES = ("dflash", "dflash2", "mtp", "eagle3")
CAPTURED = NAMES[:3]
"""Of heads like the target's, whose attention is planned in place."""
MOST_NAMES = ("dflash", "mtp", *seldom("dflash2", "eagle3"))
"""Each twin of these has its drafts compared wherever a sequence goes."""
EACH_STEPS = pytest.mark.parametrize(
    "on_card", [pytest.param(False, marks=pytest.mark.slow), True], ids=["host", "as on a card"]
)
"""Steps of the host; and those of a card, on the CPU."""

BLOCK = 16
FEW_BLOCKS = 11
DEPTH = 4
SURE = 1e-3
"""Drafts are compared where the best logit leads by so much."""

MOST_CHECKED = 24


class Draft(NamedTuple):
    """What was drafted behind an anchor."""

    before: int
    anchor: int
    position: int
    ids: list[int]


class Watched(KnownDrafter):
    """Has `inner` draft, remembers what, and answers with drafts that are partly right."""

    def __init__(self, inner: Drafter, texts: Sequence[list[int]]) -> None:
        super().__init__(texts, DEPTH, Mood.MIXED)
        self.taps = inner.taps
        self.reads_hidden = inner.reads_hidden
        self.cuts_anew = inner.cuts_anew
        self.token_bytes = inner.token_bytes
        self.take_in = inner.take_in
        self.drafts: list[Draft] = []
        self.num_captured = 0
        self._inner = inner

    def take_cache(self, num_blocks: int, block_size: int) -> None:
        """The inner one's."""
        self._inner.take_cache(num_blocks, block_size)

    @property
    def has_pending_captures(self) -> bool:
        """The inner one's."""
        return isinstance(self._inner, CapturesDrafts) and self._inner.has_pending_captures

    def prepare(self, capture: Capture) -> bool:
        """See `CapturesDrafts`."""
        if not isinstance(self._inner, CapturesDrafts) or not self._inner.prepare(capture):
            return False
        self.num_captured += 1
        return True

    def draft(self, step: DraftStep) -> Drafted:
        """See `Drafter`."""
        drafted = self._inner.draft(step)
        rows = zip(
            step.token_ids[step.rows].tolist(), step.anchors.tolist(),
            step.anchor_positions.tolist(), drafted.ids.tolist(), strict=True,
        )  # fmt: skip
        found = [Draft(*row) for row in rows]
        self.drafts += found
        known = [self._behind(one.anchor, one.position, one.before, step.depth) for one in found]
        ids = torch.tensor(known, dtype=torch.int64, device=drafted.ids.device)
        return Drafted(ids.reshape(drafted.ids.shape), drafted.confidence)


@pytest.fixture(scope="module", name="runner")
def _runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    path = write_tiny_model(tmp_path_factory.mktemp("target"), num_hidden_layers=5)
    return load_tiny(path, block_size=BLOCK, kv_tokens=2048, max_seqs=8)


@pytest.fixture(scope="module", name="asked")
def _asked() -> list[Asked]:
    return requests(7, 20, 151, 60)


@pytest.fixture(scope="module", name="expected")
def _expected(runner: ModelRunner, asked: list[Asked]) -> Answers:
    """Without drafts."""
    return serve(Drive(fresh_runner(runner)), asked)


def _watching(
    name: str, runner: ModelRunner, texts: Sequence[list[int]], path: Path, *, on_card: bool
) -> tuple[ModelRunner, Watched, Naive]:
    """With steps as on a card, or of the host; on a card with its graphs."""
    drafter, naive, _ = made(name, runner.model, path)
    watched = Watched(drafter, texts)
    watched.take_cache(runner.cache.num_blocks + 1, BLOCK)
    return _drafting(runner, watched, on_card=on_card), watched, naive


def _drafting(runner: ModelRunner, drafter: Drafter, *, on_card: bool) -> ModelRunner:
    bare = fresh_runner(runner)
    given = bare.model, bare.cache, bare.facts
    steps: DeviceSteps | HostSteps = HostSteps(*given, drafter)
    if on_card:
        capture = None if bare.model.device.type == "cuda" else run_again
        steps = DeviceSteps(*given, capture, drafter=drafter, verifies=True)
        while steps.prepare(pending_only=False):
            pass
    return ModelRunner(*given, bare.model_dir, steps)


@pytest.mark.parametrize(
    ("name", "on_card"),
    [
        *[pytest.param(name, True, id=f"{name}-as on a card") for name in NAMES],
        pytest.param("mtp", False, id="mtp-host"),
        *[
            pytest.param(name, False, id=f"{name}-host", marks=pytest.mark.slow)
            for name in NAMES
            if name != "mtp"
        ],
    ],
)
def test_drafts_follow_a_sequence_wherever_it_goes(
    name: str,
    runner: ModelRunner,
    asked: list[Asked],
    expected: Answers,
    tmp_path: Path,
    *,
    on_card: bool,
) -> None:
    """Chunks of prompts beside drafts, blocks that run out, and prefixes that others computed."""
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    drafting, watched, naive = _watching(name, runner, texts, tmp_path, on_card=on_card)
    limits = {"token_budget": 40, "num_blocks": FEW_BLOCKS}
    poor = Drive(drafting, proposer=CardDrafts(DEPTH), looks_ahead=on_card, **limits)
    assert serve(poor, asked) == expected
    assert poor.num_preemptions > 0
    while drafting.prepare(pending_only=True):
        pass
    assert (watched.num_captured > 0) == (on_card and name in CAPTURED)
    assert serve(poor, asked) == expected  # some of it from the prefix cache
    assert sum(answer.cached_tokens for answer in poor.answers.values()) > 0
    _check(watched, texts, naive, runner.model, is_stale=name in ("mtp", "eagle3"))


def _check(
    watched: Watched, texts: list[list[int]], naive: Naive, target: Network, *, is_stale: bool
) -> None:
    """Nearly all drafts are those of the naive form; all, unless rows know what followed them in
    another text.
    """
    drafts = watched.drafts[:: -(-len(watched.drafts) // MOST_CHECKED)]
    num_wrong = 0
    for draft in drafts:
        text = next(
            text for text in texts
            if text[draft.position - 1 : draft.position + 1] == [draft.before, draft.anchor]
        )  # fmt: skip
        states = _states(target, text[: draft.position], watched.taps)
        ids, logits = naive_drafts(
            naive, target, states, text[: draft.position + 1], len(draft.ids)
        )
        best = logits.topk(2).values
        sure = int(((best[:, 0] - best[:, 1]) > SURE).long().cumprod(0).sum())
        num_wrong += draft.ids[:sure] != ids[:sure]
    assert len(drafts) > MOST_CHECKED // 2
    assert num_wrong <= (0.2 * len(drafts) if is_stale else 0)


@EACH_STEPS
@pytest.mark.parametrize("name", MOST_NAMES)
def test_drafts_behind_steps_without_drafts_know_these(
    name: str,
    runner: ModelRunner,
    asked: list[Asked],
    expected: Answers,
    tmp_path: Path,
    *,
    on_card: bool,
) -> None:
    """Steps run ahead where none are made, and their rows are taken in all the same."""
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    drafting, watched, naive = _watching(name, runner, texts, tmp_path, on_card=on_card)
    proposer = CardDrafts(DEPTH, vary=True, sleeps=False)
    drive = Drive(drafting, proposer=proposer, looks_ahead=on_card, token_budget=40)
    assert serve(drive, asked) == expected
    while drafting.prepare(pending_only=True):
        pass
    if watched.num_captured:  # those that only take in, too
        assert serve(drive, asked) == expected
    depths = {len(draft.ids) for draft in watched.drafts}
    assert len(depths) > 2  # which ones depends on how many steps there are
    _check(watched, texts, naive, runner.model, is_stale=False)


@EACH_STEPS
@pytest.mark.parametrize("name", MOST_NAMES)
def test_weights_that_are_no_numbers_change_no_text(
    name: str,
    runner: ModelRunner,
    asked: list[Asked],
    expected: Answers,
    tmp_path: Path,
    *,
    on_card: bool,
) -> None:
    """Weights that are no numbers draft some token, which is refused, and change no text."""
    broken = made(name, runner.model, tmp_path, std=float("nan"))[0]
    broken.take_cache(runner.cache.num_blocks + 1, BLOCK)
    drafting = _drafting(runner, broken, on_card=on_card)
    proposer = CardDrafts(DEPTH)
    drive = Drive(drafting, proposer=proposer, looks_ahead=on_card, token_budget=40)
    assert serve(drive, asked) == expected
    assert len(proposer.accepted) > 20


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_drafts_on_a_card_are_those_of_a_cpu(
    name: str, dtype: str, asked: list[Asked], tmp_path: Path
) -> None:
    """Drafts on a card are those of a CPU, in graphs, and beside prompts that are launched kernel
    by kernel. Texts are to the byte those without drafts where the worker is invariant.
    """
    path = write_tiny_model(tmp_path / "target", num_hidden_layers=5)
    shape = {"block_size": BLOCK, "kv_tokens": 2048, "max_seqs": 8}
    on_cpu = load_tiny(path, **shape)
    runner = load_tiny(path, device="cuda", dtype=dtype, invariant=True, **shape)
    expected = serve(Drive(fresh_runner(runner)), asked)
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    drafting, watched, naive = _watching(name, runner, texts, tmp_path, on_card=True)
    limits = {"token_budget": 64, "num_blocks": FEW_BLOCKS + 1}
    drive = Drive(drafting, proposer=CardDrafts(DEPTH), looks_ahead=True, **limits)
    for _ in range(3):
        assert serve(drive, asked) == expected
        while drafting.prepare(pending_only=True):
            pass
    assert (watched.num_captured > 0) == (name in CAPTURED)
    if dtype == "float32":
        _check(watched, texts, naive, on_cpu.model, is_stale=name in ("mtp", "eagle3"))


@pytest.mark.gpu
def test_decodes_on_a_card_are_taken_in(asked: list[Asked], tmp_path: Path) -> None:
    """Decodes on a card are taken in by the graphs of decodes, which a worker that is not invariant
    has.
    """
    path = write_tiny_model(tmp_path / "target", num_hidden_layers=5)
    shape = {"block_size": BLOCK, "kv_tokens": 2048, "max_seqs": 8}
    runner = load_tiny(path, device="cuda", dtype="float32", **shape)
    expected = serve(Drive(fresh_runner(runner)), asked)
    texts = [one.prompt + answer for one, answer in zip(asked, expected, strict=True)]
    drafting, watched, naive = _watching("dflash", runner, texts, tmp_path, on_card=True)
    proposer = CardDrafts(DEPTH, vary=True)
    drive = Drive(drafting, proposer=proposer, looks_ahead=True, token_budget=40)
    assert serve(drive, asked) == expected
    _check(watched, texts, naive, load_tiny(path, **shape).model, is_stale=False)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", [*seldom("dflash"), "mtp"])
def test_draft_passes_are_timed(name: str, device: str, asked: list[Asked], tmp_path: Path) -> None:
    """Apart from the steps that they follow, on a card by its own clock. Drafts of random weights
    are hardly ever right, so few are made.
    """
    path = write_tiny_model(tmp_path / "target", num_hidden_layers=5)
    shape = {"block_size": BLOCK, "kv_tokens": 2048, "max_seqs": 8}
    runner = load_tiny(path, device=device, dtype="float32", invariant=True, **shape)
    expected = serve(Drive(fresh_runner(runner)), asked)
    drafter, _, _ = made(name, runner.model, tmp_path)
    drafter.take_cache(runner.cache.num_blocks + 1, BLOCK)
    drafting = _drafting(runner, drafter, on_card=True)
    policy, odds = SpeculationPolicy(looks_ahead=True), PlaceOdds(DEPTH)
    depth = DraftDepth(odds, policy, DEPTH)
    proposer = Speculation(CardSource(name, odds), policy, draft_depth=depth)
    drive = Drive(drafting, proposer=proposer, looks_ahead=True, clock=time.perf_counter)
    for _ in range(3):
        assert serve(drive, asked) == expected
        while drafting.prepare(pending_only=True):
            pass
    times = [seconds for found in depth.times.export().values() for seconds in found.values()]
    assert times
    assert all(seconds > 0 for seconds in times)
    assert sum(proposer.counters.verified) > 0


@torch.inference_mode()
def _states(target: Network, ids: list[int], layers: tuple[int, ...]) -> Tensor:
    """What a drafter reads of tokens that are computed at once."""
    num_blocks, width = -(-len(ids) // BLOCK), target.config.hidden_size
    cache = KvCache(target.config, num_blocks, BLOCK, target.device, torch.float32)
    plan = plan_attention([Segment(0, len(ids), range(num_blocks))], BLOCK, target.device)
    taps = Taps(layers, torch.empty(len(ids), width * len(layers)))
    last = target.forward(target.embed(torch.tensor(ids)), plan, cache, taps=taps)
    return taps.out if layers else last
