"""Small mixed steps in buckets of fixed size: which steps they serve, and their padding."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import Tensor

from kernels.attention import NO_ROW, PagedPlan
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.workers.engine.step_cases import (
    BLOCK,
    DRAWN,
    GREEDY,
    NUM_SEQS,
    Life,
    as_on_card,
    plans_of_lives,
    sampled_by,
    start_of,
)
from workers.engine.graphs.buckets import GraphBucket
from workers.engine.graphs.capture import Capture, Replay, run_again, sparing
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.models.kv_cache import KvCache
from workers.engine.runner import ModelRunner
from workers.scheduler.plan import Chunk, StepPlan

LONGEST_PROMPT = 90
GRAPH_BYTES, UPLOAD_BYTES, LARGEST_BYTES = 10, 2, 600


@pytest.fixture(name="host", scope="module")
def _host(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    folder: Path = tmp_path_factory.mktemp("model")
    model_dir = write_tiny_model(folder)
    return load_tiny(model_dir, kv_tokens=1024, block_size=BLOCK, token_budget=1024)


LIVES = st.lists(
    st.builds(
        Life,
        comes=st.integers(0, 5),
        num_prompt=st.integers(1, LONGEST_PROMPT),
        cut=st.sampled_from([1, 2, 7, 20, 48, 64, 100]),
        sampling=st.sampled_from([GREEDY, DRAWN]),
    ),
    min_size=1,
    max_size=NUM_SEQS,
)


@given(lives=LIVES)
def test_random_lives_say_the_same(host: ModelRunner, lives: list[Life]) -> None:
    """Random sequences get the same tokens, whatever meets in a step, padded and one step ahead of
    the host.
    """
    plans = plans_of_lives(lives, 16)
    ended = StepPlan(99, (), (), tuple(range(len(lives))))
    expected = sampled_by(host, plans, ahead=0)
    host.run(ended)
    assert sampled_by(as_on_card(host, run_again), plans, ahead=1) == expected


def _launched(runner: ModelRunner, lengths: Sequence[int]) -> bool:
    """Whether a first step of such chunks, one for each sequence, replays a graph."""
    starts = tuple(start_of(seq, GREEDY, [5] * length) for seq, length in enumerate(lengths))
    chunks = tuple(
        Chunk(seq, 0, length, (8 * seq, 8 * seq + 1, 8 * seq + 2, 8 * seq + 3), samples=True)
        for seq, length in enumerate(lengths)
    )
    result = runner.run(StepPlan(1, starts, chunks, ()))
    used_graph = runner.used_graph
    runner.run(StepPlan(2, (), (), tuple(range(len(lengths)))))
    assert len(result.sampled) == len(lengths)
    return used_graph


def _uncaptured(host: ModelRunner, capture: Capture, max_rows: int | None = None) -> ModelRunner:
    """As on a card, before the first capture."""
    facts, model, cache = host.facts, host.model, as_on_card(host).cache
    facts = replace(facts, max_seqs=max_rows or facts.max_seqs)
    steps = DeviceSteps(model, cache, facts, capture)
    return ModelRunner(model, cache, facts, host.model_dir, steps)


def test_what_no_step_fills_is_not_captured(host: ModelRunner) -> None:
    """The budget bounds decodes and segments alike, and what it leaves of them has graphs."""
    num_rows: list[int] = []

    def capture(step: Callable[[], Tensor]) -> Replay:
        num_rows.append(len(step()))
        return step

    facts = replace(host.facts, max_seqs=8, token_budget=4)
    steps = DeviceSteps(host.model, as_on_card(host).cache, facts, capture)
    runner = ModelRunner(host.model, host.cache, facts, host.model_dir, steps)
    while runner.prepare(pending_only=False):
        pass
    assert sorted(num_rows) == [
        1,
        1,
        2,
        4,
        4 + 2,
    ]  # a segment alone samples one row, the whole budget 6
    assert _launched(runner, (4,))
    assert _launched(runner, (1, 2, 1))


def test_a_bucket_is_pending_then_serves(host: ModelRunner) -> None:
    """A step that no captured bucket holds runs at its own size; idle times capture the others."""
    runner = as_on_card(host)
    assert not _launched(runner, (20, 1))
    assert not runner.has_pending_captures
    runner = _uncaptured(host, run_again)
    assert not _launched(runner, (20, 1))
    assert runner.prepare(pending_only=True)
    assert not runner.has_pending_captures
    assert _launched(runner, (20, 1))
    assert not _launched(runner, (60, 1))
    assert runner.has_pending_captures
    while runner.prepare(pending_only=False):
        pass
    assert _launched(runner, (60, 1))
    assert _launched(runner, (2,) * 8)


def test_what_no_bucket_holds_runs_at_its_own_size(
    host: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than the largest bucket has for segments: no capture is requested."""
    monkeypatch.setattr(
        "workers.engine.graphs.buckets.graph_buckets", lambda *_: (GraphBucket(4, 256, 16),)
    )
    runner = as_on_card(host, run_again)
    assert _launched(runner, (64,) * 4)
    assert not _launched(runner, (64, 64, 64, 63, 2))
    assert not runner.has_pending_captures


def test_what_a_bucket_has_too_much_of_costs_nothing(
    host: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decodes that are not there stand at no position; rows of no segment, in the dummy's table.
    All parts begin where no kernel is compiled for them alone.
    """
    plans, prepared, max_rows = [], host.model.prepared, 5
    runner = _uncaptured(host, run_again, max_rows)
    while runner.prepare(pending_only=False):
        pass

    def see(plan: PagedPlan, cache: KvCache) -> PagedPlan:
        plans.append(plan)
        return prepared(plan, cache)

    monkeypatch.setattr(host.model, "prepared", see)
    assert _launched(runner, (1, 20, 1))
    (plan,) = plans
    used = [0, 1, *range(plan.num_decodes, plan.num_decodes + 20)]
    unused = torch.ones(len(plan.positions), dtype=torch.bool)
    unused[used] = False
    assert set(plan.table_rows[unused].tolist()) == {max_rows}
    assert set(plan.positions[: plan.num_decodes][unused[: plan.num_decodes]].tolist()) == {NO_ROW}
    assert plan.positions[used].tolist() == [0, 0, *range(20)]
    parts = plan.positions, plan.table_rows, plan.work.items, plan.work.merges
    assert [part.data_ptr() % 16 for part in parts] == [0] * 4


def test_a_capture_between_two_steps_changes_nothing(host: ModelRunner) -> None:
    """A capture between two steps changes nothing: its results reach no sequence, though the inputs
    still hold the last step.
    """
    plans = plans_of_lives(
        [Life(0, 5, 5, GREEDY), Life(1, 30, 20, GREEDY), Life(9, 7, 7, GREEDY)], 24
    )
    ended = StepPlan(99, (), (), (0, 1, 2))
    expected = sampled_by(host, plans, ahead=0)
    host.run(ended)
    runner = _uncaptured(host, run_again)
    for plan, wanted in zip(plans, expected, strict=True):
        assert sampled_by(runner, [plan], ahead=0) == [wanted]
        runner.prepare(pending_only=False)
    assert not runner.prepare(pending_only=False)


class _SmallMemory:
    """Captures so many steps, then memory is used up, as `error` says."""

    def __init__(self, num_left: int, error: Exception) -> None:
        self.num_left = num_left
        self._error = error

    def __call__(self, step: Callable[[], Tensor]) -> Replay:
        if self.num_left == 0:
            raise self._error
        self.num_left -= 1
        return run_again(step)


def test_another_error_of_a_capture_is_not_hidden(host: ModelRunner) -> None:
    """Another error of a capture is not hidden: only lack of memory is survivable."""
    runner = _uncaptured(host, _SmallMemory(0, RuntimeError("a wrong shape")))
    with pytest.raises(RuntimeError, match="a wrong shape"):
        runner.prepare(pending_only=False)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no more"), RuntimeError("Triton Error [CUDA]: out of memory")]
)
def test_memory_that_runs_out_ends_the_captures(
    host: ModelRunner, capfd: pytest.CaptureFixture[str], error: Exception
) -> None:
    """One line reports it; the captured graphs serve on, and other steps run without a graph."""
    capture = _SmallMemory(1, error)
    runner = _uncaptured(host, capture)
    assert not _launched(runner, (20, 1))
    assert runner.prepare(pending_only=True)
    assert not runner.prepare(pending_only=False)
    assert "no memory for more graphs" in capfd.readouterr().err
    capture.num_left = 9
    assert not runner.prepare(pending_only=False)
    assert _launched(runner, (20, 1))
    assert not _launched(runner, (60, 1))
    assert not runner.has_pending_captures


class _Card:
    """Has so many bytes, of which a capture keeps some for good, and the first replay some more."""

    def __init__(self, num_bytes: int) -> None:
        self.num_free = num_bytes
        self.num_captured = 0

    def capture(self, step: Callable[[], Tensor]) -> Replay:
        self._take(GRAPH_BYTES)
        run_again(step)
        missing = [UPLOAD_BYTES]

        def replay() -> Tensor:
            if missing:
                self._take(missing[0])
                missing.clear()
                self.num_captured += 1
            return step()

        return replay

    @contextmanager
    def hold(self, num_bytes: int) -> Iterator[None]:
        self._take(num_bytes)
        try:
            yield
        finally:
            self.num_free += num_bytes

    def _take(self, num_bytes: int) -> None:
        if num_bytes > self.num_free:
            raise torch.OutOfMemoryError(f"{num_bytes} of {self.num_free} bytes")
        self.num_free -= num_bytes


@pytest.mark.parametrize(("num_bytes", "num_graphs"), [(500, 0), (611, 0), (647, 3), (9999, None)])
def test_captures_leave_the_largest_step_its_memory(
    host: ModelRunner, num_bytes: int, num_graphs: int | None
) -> None:
    """Graphs are never given back: else that step would fail ever after."""
    card = _Card(num_bytes)
    runner = _uncaptured(host, sparing(card.capture, LARGEST_BYTES, card.hold))
    num_prepared = 0
    while runner.prepare(pending_only=False):
        num_prepared += 1
    assert card.num_free >= min(num_bytes, LARGEST_BYTES)
    assert card.num_captured == num_prepared
    assert num_prepared == num_graphs if num_graphs is not None else num_prepared > 3
    assert _launched(runner, (20, 1)) == (num_graphs is None)
    assert not runner.has_pending_captures


def test_a_step_that_samples_nothing(host: ModelRunner) -> None:
    """A chunk of a prompt that is not its last is waited for, says nothing, and the next one finds
    it.
    """
    plans = plans_of_lives([Life(0, 90, 40, GREEDY)], 4)
    host.run(StepPlan(9, (), (), (0,)))
    expected = sampled_by(host, plans, ahead=0)
    runner = as_on_card(host, run_again)
    launched = runner.launch(plans[0]).launched
    assert launched is not None
    assert launched.wait().ids.tolist() == []
    assert runner.used_graph
    assert sampled_by(runner, plans[1:], ahead=1) == expected[1:]
