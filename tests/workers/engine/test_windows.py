"""Layers that keep only their window answer as if they kept all tokens, whatever happens."""

from array import array
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from benchmarks.drive import Drive, fresh_runner
from kernels.attention import PagedPlan, kept_from
from protocol.sampling import SamplingParams
from tests.fakes.drafts import HostDrafts, Mood
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny
from tests.workers.engine.step_cases import as_on_card
from workers.engine.graphs.capture import run_again
from workers.engine.memory import window_size
from workers.engine.models import network
from workers.engine.runner import ModelRunner
from workers.engine.step.host_steps import HostSteps
from workers.scheduler import WindowSizes, first_kept, most_kept
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan
from workers.scheduler.saving import SavePolicy

BLOCK = 16
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
SAVED = SavePolicy(grain=16, every=128, least=16, along=16, along_drafts=16)
PROMPTS = [
    [(seed + index * index) % 149 for index in range(length)]
    for seed, length in ((2, 90), (4, 240), (4, 241), (5, 244))
]
"""The second and the third part at their ends. Three hold most of what is kept by 128 tokens."""


def load(model_dir: Path, **keys: Any) -> ModelRunner:
    sizes = {"kv_tokens": 3000, "context_length": 512, "block_size": BLOCK, "token_budget": 128}
    return load_tiny(model_dir, **sizes, **keys)


def keeping_windows(model_dir: Path, **keys: Any) -> ModelRunner:
    """Keep only windows, also for a model so small that this saves nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_size, "LEAST_SAVED", 0)
        runner = load(model_dir, **keys)
    assert runner.windows is not None
    return runner


class Case(NamedTuple):
    """A model, the runner that keeps only windows, and what one that keeps all tokens answers to
    each of `PROMPTS` alone.
    """

    model_dir: Path
    runner: ModelRunner
    expected: list[list[int]]


FAMILIES = [
    "gemma4",
    "gpt_oss",
    *[pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3", "gemma4-e")],
]


@pytest.fixture(scope="module", params=FAMILIES, name="case")
def _case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model_dir = write_family(tmp_path_factory.mktemp("model"), request.param)
    keeps_all = load(model_dir)
    assert keeps_all.windows is None
    expected = [answers_of(driven(keeps_all, [prompt]))[0] for prompt in PROMPTS]
    return Case(model_dir, keeping_windows(model_dir), expected)


def driven(runner: ModelRunner, prompts: list[list[int]], times: int = 1, **shape: Any) -> Drive:
    drive = Drive(runner, save_policy=SAVED, **shape)
    for _ in range(times):
        for prompt in prompts:
            drive.submit(prompt, GREEDY)
        drive.finish()
    return drive


def answers_of(drive: Drive) -> list[list[int]]:
    return [answer.outputs for answer in drive.answers.values()]


def test_chunks_beside_decodes_and_behind_hits(case: Case) -> None:
    """Prompts in chunks of 48 tokens, which share a prefix, and again from the prefix cache."""
    drive = driven(fresh_runner(case.runner), PROMPTS, 2, token_budget=48, max_seqs=4)
    assert answers_of(drive) == case.expected * 2
    hits = [answer.cached_tokens for answer in drive.answers.values()]
    assert hits[4:] == [(len(prompt) - 1) // BLOCK * BLOCK for prompt in PROMPTS]


def test_blocks_of_windows_run_out(case: Case) -> None:
    """Blocks of windows run out: with room for less than two windows sequences are preempted, and
    snapshots give way.
    """
    assert case.runner.windows is not None
    window = case.runner.windows.window
    few = WindowSizes(most_kept(window, BLOCK) + 6, window)
    drive = driven(fresh_runner(case.runner), PROMPTS, 2, max_seqs=4, window_sizes=few)
    assert answers_of(drive) == case.expected * 2
    assert drive.num_preemptions > 0


def test_steps_as_on_a_card(case: Case) -> None:
    """Steps as on a card, in graphs, a step ahead; what is read before it is written would be
    NaN.
    """
    runner = as_on_card(case.runner, run_again)
    drive = driven(runner, PROMPTS, 2, token_budget=100, max_seqs=3, looks_ahead=True)
    assert answers_of(drive) == case.expected * 2


def test_drafts_right_and_wrong(case: Case) -> None:
    """What windows keep covers the rows that are verified."""
    texts = [prompt + answer for prompt, answer in zip(PROMPTS, case.expected, strict=True)]
    bare = fresh_runner(case.runner)
    steps = HostSteps(bare.model, bare.cache, bare.facts, verifies=True)
    runner = ModelRunner(bare.model, bare.cache, bare.facts, bare.model_dir, steps)
    proposer = HostDrafts(texts, 5, Mood.MIXED, vary=True)
    drive = driven(runner, PROMPTS, 2, max_seqs=3, proposer=proposer)
    assert answers_of(drive) == case.expected * 2
    assert any(accepted for _, accepted in proposer.accepted)


@torch.inference_mode()
def test_invariant_rows_are_equal_to_the_bit(case: Case) -> None:
    """Whether a prompt is computed at once or in three parts, the last of one row; what one part
    lets go of is as if it held NaN.
    """
    runner = keeping_windows(case.model_dir, invariant=True)
    prompt, blocks, found = PROMPTS[1], tuple(range(15)), []
    for sizes in ((240,), (151, 88, 1)):
        alone, start = fresh_runner(runner), 0
        begin = (SequenceStart(0, array("I", prompt), 240, GREEDY, seed=0),)
        for size in sizes:
            first = first_kept(start, runner.model.config.kept_window) // BLOCK
            keys, _ = alone.cache.layers[0]
            keys[:first].fill_(float("nan"))
            chunk = Chunk(0, start, size, blocks, samples=False, window_ids=blocks)
            ((_, hidden),) = alone.hidden(StepPlan(0, begin, (chunk,), ()))
            start, begin = start + size, ()
        found.append(hidden[-1])
    assert torch.equal(*found)


def test_what_is_prepared_for_windows_says_how_far_they_reach(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work that is prepared for windows says how far they reach, so that programs share the
    keys that are seen and not all that are cached.
    """
    found: list[tuple[int, bool]] = []

    def see(plan: PagedPlan, *_: object, **_named: object) -> PagedPlan:
        found.append((plan.reach, plan.block_tables is tables[1]))
        return plan

    monkeypatch.setattr(network, "prepared", see)
    tables = [torch.zeros(1, 4, dtype=torch.int32) for _ in range(2)]
    rows = torch.zeros(1, dtype=torch.int32)
    plan = PagedPlan(rows, rows, tables[0], 1, window_tables=tables[1])
    model = case.runner.model
    model.prepared(plan, case.runner.cache)
    assert found == [(0, False), (model.config.kept_window, True)]


def test_scheduler_and_kernels_agree_on_what_is_kept() -> None:
    """Each has the rule, because neither knows the other."""
    for window in (1, 20, 128, 1024):
        starts = range(0, 3000, 7)
        assert [first_kept(start, window) for start in starts] == [
            kept_from(start, window) for start in starts
        ]


def test_what_does_not_pay_or_cannot_go_with_it_keeps_all(tmp_path: Path) -> None:
    """Ranks, drafting networks and copies to the host; a context near the window; few bytes."""
    model_dir = write_family(tmp_path, "gemma4")
    assert load(model_dir).windows is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_size, "LEAST_SAVED", 0)
        short = load_tiny(model_dir, kv_tokens=1024, context_length=200, block_size=BLOCK)
        assert short.windows is None
        assert load(model_dir, host_bytes=2**20).windows is None
