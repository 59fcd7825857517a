"""The card's steps, run on the CPU with plain torch: the same tokens, one step ahead."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.attention import NO_ROW, PagedPlan
from kernels.experts import Routing
from kernels.fp8 import DualWeight, Weight, quantize_weight
from kernels.mxfp4 import Mxfp4Weight
from protocol.sampling import SamplingParams
from tests.workers.engine.step_cases import (
    DRAWN,
    FILTERED,
    GENERAL,
    GREEDY,
    PROMPTS,
    as_on_card,
    outputs_of,
    plans_of,
    start_of,
)
from workers.engine.graphs import device_steps
from workers.engine.graphs.capture import Capture, run_again
from workers.engine.graphs.capture_order import CaptureOrder
from workers.engine.graphs.decode_step import DecodeStep
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.models.description import Dense, Experts, HeadSizes
from workers.engine.models.kv_cache import KvCache
from workers.engine.runner import ModelRunner
from workers.engine.step.draft_pass import NoDraftPass
from workers.engine.step.draws import DrawTable
from workers.engine.step.states import NoStates
from workers.engine.step.tables import SequenceTables
from workers.scheduler.plan import Chunk, StepPlan

_SHORT = {1: (16, 24), 2: (24,)}
"""Contexts of graphs for short ones, by rows."""


@pytest.mark.parametrize(
    "sampling",
    [
        dict.fromkeys(PROMPTS, GREEDY),
        {1: GREEDY, 2: DRAWN, 3: GREEDY, 4: DRAWN},
        {1: GREEDY, 2: FILTERED, 3: DRAWN, 4: FILTERED},
        {1: GENERAL, 2: GREEDY, 3: FILTERED, 4: GENERAL},
    ],
    ids=["greedy", "drawn", "filtered", "general"],
)
def test_tokens_are_those_of_the_host(
    host: ModelRunner, capture: Capture | None, sampling: dict[int, SamplingParams]
) -> None:
    """Mixed steps, decodes, a prompt in two chunks: ahead of the host, nothing differs."""
    plans = plans_of(sampling, 30)
    expected = outputs_of(host, plans, ahead=0)
    found = outputs_of(as_on_card(host, capture), plans, ahead=1)
    assert {seq: [item.ids for item in items] for seq, items in found.items()} == {
        seq: [item.ids for item in items] for seq, items in expected.items()
    }
    for seq, items in expected.items():
        for ours, theirs in zip(found[seq], items, strict=True):
            for own, other in zip(ours.logprobs, theirs.logprobs, strict=True):
                assert own.logprob == pytest.approx(other.logprob, abs=1e-4)
                assert [i for i, _ in own.top] == [i for i, _ in other.top]


def test_a_preempted_sequence_goes_on_in_other_blocks(
    host: ModelRunner, capture: Capture | None
) -> None:
    """A preempted sequence goes on in other blocks with a new table; the tokens that it sent
    stay.
    """
    runner, prompt = as_on_card(host, capture), PROMPTS[1]
    undisturbed = outputs_of(host, plans_of(dict.fromkeys(PROMPTS, GREEDY), 3), ahead=0)[1]
    expected = [item.ids[0] for item in undisturbed]
    runner = as_on_card(host, capture)
    start = start_of(1, GREEDY)
    length = len(prompt)
    runner.run(StepPlan(1, (start,), (Chunk(1, 0, length, (8, 4), samples=True),), ()))
    runner.run(StepPlan(2, (), (Chunk(1, length, 1, (8, 4), samples=True),), ()))
    again = Chunk(1, 0, length + 2, (1, 30), samples=True)
    assert runner.run(StepPlan(3, (), (again,), ())).sampled[0].ids == (expected[2],)
    last = Chunk(1, length + 2, 1, (1, 30), samples=True)
    assert runner.run(StepPlan(4, (), (last,), ())).sampled[0].ids == (expected[3],)


def test_a_row_is_used_again_after_its_sequence(host: ModelRunner, capture: Capture | None) -> None:
    """More sequences than rows, one after another: each sees its own table only."""
    runner = as_on_card(host, capture)
    for seq in range(20):
        prompt = [seq + 2] * 5
        start = start_of(seq, GREEDY, prompt)
        chunk = Chunk(seq, 0, 5, (seq % 7,), samples=True)
        ended = (seq - 1,) if seq else ()
        found = runner.run(StepPlan(seq, (start,), (chunk,), ended)).sampled[0].ids
        assert found == host.run(StepPlan(seq, (start,), (chunk,), ended)).sampled[0].ids
    assert runner.num_sequences == 1


@pytest.mark.parametrize("max_rows", [5, 8])
def test_the_rows_of_any_step_begin_where_kernels_expect_it(
    host: ModelRunner, max_rows: int
) -> None:
    """The rows of any step begin where kernels expect it, at multiples of 16 bytes: for others,
    decode attention would be compiled once more.
    """
    tables = SequenceTables(max_rows, 4, host.cache.dummy_block, host.model.device)
    draws = DrawTable(host.model.config.vocab_size, max_rows, host.model.device)
    draft_pass = NoDraftPass(host.model, host.cache)
    step = DecodeStep(host.model, host.cache, tables, draws, max_rows, NoStates(), draft_pass)
    positions, table_rows = step.fill([3, 7], [1, 0])
    assert (positions.tolist(), table_rows.tolist()) == ([3, 7], [1, 0])
    assert [column.data_ptr() % 16 for column in (positions, table_rows)] == [0, 0]


def test_logits_that_are_no_numbers_fail_their_sequence(
    host: ModelRunner, capture: Capture | None
) -> None:
    """The neighbour is answered, and the next step of the broken one breaks no other."""
    runner = as_on_card(host, capture)
    starts = (start_of(1, GREEDY, [5, 6]), start_of(2, GREEDY, [5, 6]))
    host.model.weights.embedding[9] = float("nan")
    starts[0].token_ids[1] = 9
    chunks = (Chunk(1, 0, 2, (0,), samples=True), Chunk(2, 0, 2, (1,), samples=True))
    first = runner.launch(StepPlan(1, starts, chunks, ()))
    ahead = (Chunk(1, 2, 1, (0,), samples=True), Chunk(2, 2, 1, (1,), samples=True))
    second = runner.launch(StepPlan(2, (), ahead, ()))
    assert [seq for seq, _ in runner.collect(first).failed] == [1]
    third = runner.launch(_beside_a_prompt())
    result = runner.collect(second)
    assert [item.seq for item in result.sampled] == [2]
    assert [item.seq for item in runner.collect(third).sampled] == [2, 3]


def _beside_a_prompt() -> StepPlan:
    """A mixed step of the broken sequence, its neighbour and a new one."""
    chunks = (
        Chunk(1, 3, 1, (0,), samples=True),
        Chunk(2, 3, 1, (1,), samples=True),
        Chunk(3, 0, 4, (2,), samples=True),
    )
    return StepPlan(3, (start_of(3, GREEDY, [5, 6, 7, 8]),), chunks, ())


def test_rows_that_are_not_there_cost_nothing(
    host: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of padding cost nothing: they have no position and the dummy table."""
    runner, plans, prepared = as_on_card(host, run_again), [], host.model.prepared

    def see(plan: PagedPlan, cache: KvCache) -> PagedPlan:
        plans.append((plan.positions.tolist(), plan.table_rows.tolist()))
        return prepared(plan, cache)

    starts = tuple(start_of(seq, GREEDY, [5, 6]) for seq in range(3))
    prompts = tuple(Chunk(seq, 0, 2, (seq,), samples=True) for seq in range(3))
    runner.run(StepPlan(1, starts, prompts, ()))
    monkeypatch.setattr(host.model, "prepared", see)
    tokens = tuple(Chunk(seq, 2, 1, (seq,), samples=True) for seq in range(3))
    assert len(runner.run(StepPlan(2, (), tokens, ())).sampled) == 3
    assert plans == [([2, 2, 2, NO_ROW], [0, 1, 2, host.facts.max_seqs])]


@pytest.mark.parametrize(
    "sampling", [DRAWN, FILTERED, GENERAL], ids=["drawn", "filtered", "general"]
)
def test_a_number_is_given_to_another_sequence(
    host: ModelRunner, capture: Capture | None, sampling: SamplingParams
) -> None:
    """A number is given to another sequence, and nothing of its last owner is left: neither how it
    was drawn nor its tokens.
    """
    runner = as_on_card(host, capture)
    for params in (sampling, GREEDY, GENERAL):
        start, first = start_of(1, params), Chunk(1, 0, 21, (0, 1), samples=True)
        plans = [StepPlan(1, (start,), (first,), ())]
        plans += [
            StepPlan(2, (), (Chunk(1, 21 + n, 1, (0, 1), samples=True),), ()) for n in range(6)
        ]
        said = [[run.run(plan).sampled[0].ids for plan in plans] for run in (runner, host)]
        for run in (runner, host):
            run.run(StepPlan(3, (), (), (1,)))
        assert said[0] == said[1]


def test_few_decodes_with_short_contexts_have_a_graphs_of_their_own(
    host: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each serves up to the last context that its launches are meant for, and one for any context
    serves from there on; the tokens are the same.
    """
    monkeypatch.setattr(device_steps, "short_contexts", lambda _: {1: (22, 24)})
    runner, longest, prepared = as_on_card(host, run_again), [], host.model.prepared

    def see(plan: PagedPlan, cache: KvCache) -> PagedPlan:
        longest.append(plan.longest)
        return prepared(plan, cache)

    monkeypatch.setattr(host.model, "prepared", see)
    plans = [StepPlan(1, (start_of(1, GREEDY),), (Chunk(1, 0, 21, (0, 1), samples=True),), ())]
    plans += [StepPlan(2, (), (Chunk(1, 21 + n, 1, (0, 1), samples=True),), ()) for n in range(5)]
    said = [runner.run(plan).sampled[0].ids for plan in plans]
    assert longest[-5:] == [22, 22, 24, 24, 0]
    assert said == [host.run(plan).sampled[0].ids for plan in plans]


@pytest.mark.parametrize(
    ("most", "of_one_tile", "found"),
    [(2**30, 2**30, _SHORT), (2**30, 1, {1: (24,), 2: (24,)}), (1, 1, {})],
)
def test_long_layers_have_no_graphs_for_short_contexts(
    host: ModelRunner,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    of_one_tile: int,
    found: dict[int, tuple[int, ...]],
) -> None:
    """Long layers have no graphs for short contexts: where weights take longer to read, more
    programs are on their way to them, first those of contexts that are one tile.
    """
    asked: list[object] = []

    def order(*args: object, short: dict[int, tuple[int, ...]], **named: object) -> CaptureOrder:
        asked.append(short)
        return CaptureOrder(*args, short=short, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(device_steps, "_SHORT_BYTES", most)
    monkeypatch.setattr(device_steps, "_ONE_TILE", 16)
    monkeypatch.setattr(device_steps, "_ONE_TILE_BYTES", of_one_tile)
    monkeypatch.setattr(device_steps, "short_contexts", lambda _: _SHORT)
    monkeypatch.setattr(device_steps, "CaptureOrder", order)
    as_on_card(host)
    assert asked == [found]


@pytest.mark.parametrize(
    ("heads", "found"),
    [
        ([HeadSizes(4, 2, 8), HeadSizes(4, 2, 8, in_window=True)], _SHORT),
        ([HeadSizes(4, 2, 8), HeadSizes(4, 1, 8, in_window=True)], {}),
        ([HeadSizes(4, 2, 8), HeadSizes(4, 2, 16)], {}),
    ],
)
def test_windows_do_not_keep_short_contexts_from_graphs_of_their_own(
    host: ModelRunner,
    monkeypatch: pytest.MonkeyPatch,
    heads: list[HeadSizes],
    found: dict[int, tuple[int, ...]],
) -> None:
    """Heads of other sizes do: what is measured for one of them need not be right for the other."""
    config = SimpleNamespace(is_latent=False, head_sizes=heads, num_layers=1)
    model: Any = SimpleNamespace(config=config)
    monkeypatch.setattr(device_steps, "_read_bytes", lambda *_: 0)
    monkeypatch.setattr(device_steps, "short_contexts", lambda _: _SHORT)
    assert device_steps._short_contexts(model, host.cache) == found


@pytest.mark.parametrize("form", ["16 bits", "MXFP4", "both"])
def test_a_row_reads_the_chosen_experts_as_they_are_stored(form: str) -> None:
    """Two of eight, of more rows those that any of them chose, and of a weight in two forms that of
    one row.
    """
    dense = torch.zeros(64, 32, dtype=torch.bfloat16)
    stack: Weight = torch.zeros(8 * 64, 32, dtype=torch.bfloat16)
    product: Weight = dense
    if form == "MXFP4":
        stack = Mxfp4Weight(*(torch.zeros(8 * 64, n, dtype=torch.uint8) for n in (16, 1)))
    if form == "both":
        product = DualWeight(dense, quantize_weight(dense))
    layer = SimpleNamespace(qkv=product, out=product, gate_up=stack, down=stack)
    mlps = [Experts(width=16, routing=Routing(8, 2)), Dense(width=16)]
    model: Any = SimpleNamespace(
        config=SimpleNamespace(layers=[SimpleNamespace(mlp=mlp) for mlp in mlps]),
        weights=SimpleNamespace(layers=[layer, layer]),
    )
    others = 2 * 2 * dense.nbytes + 2 * stack.nbytes
    assert device_steps._read_bytes(model, 1) == others + 2 * stack.nbytes // 4
    assert device_steps._read_bytes(model, 2) == others + 2 * stack.nbytes * 7 // 16


def test_a_decode_tells_whether_it_was_replayed(host: ModelRunner) -> None:
    """A missed graph becomes pending, and serves from then on."""
    facts, cache = host.facts, host.cache
    steps = DeviceSteps(host.model, cache, facts, run_again)
    runner = ModelRunner(host.model, cache, facts, host.model_dir, steps)
    first = Chunk(1, 0, 21, (0, 1), samples=True)
    runner.run(StepPlan(1, (start_of(1, GREEDY),), (first,), ()))
    found = []
    for position in (21, 22):
        runner.run(StepPlan(2, (), (Chunk(1, position, 1, (0, 1), samples=True),), ()))
        found.append((runner.used_graph, runner.has_pending_captures))
        while runner.prepare(pending_only=True):
            pass
    assert found == [(False, True), (True, False)]
