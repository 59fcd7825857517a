"""A step planned while another is computed, by example."""

import pytest

from protocol.messages import Accepted, Finished, Tokens
from tests.fakes.drafts import CardDrafts
from tests.fakes.scheduling import EOS, Engine, make_scheduler, make_submit
from workers.scheduler.plan import Sampled, StepPlan, StepResult
from workers.scheduler.scheduler import Scheduler


def chunks(plan: StepPlan | None) -> list[tuple[int, int, int, bool]]:
    """Sequence, start, length and whether it samples, of each chunk."""
    assert plan is not None
    return [(chunk.seq, chunk.start, chunk.length, chunk.samples) for chunk in plan.chunks]


def planned(scheduler: Scheduler) -> StepPlan:
    """The next plan."""
    plan = scheduler.plan()
    assert plan is not None
    return plan


def answer(plan: StepPlan, token_id: int = 1) -> StepResult:
    """A result with that token for each sampling chunk."""
    sampled = (Sampled(chunk.seq, (token_id,)) for chunk in plan.chunks if chunk.samples)
    return StepResult(plan.step, tuple(sampled))


def test_the_token_of_the_step_in_flight_is_planned_by_its_position() -> None:
    """The token of the step in flight is planned by its position before its value is known here;
    nothing is planned after the last possible token.
    """
    engine = Engine(lookahead=1)
    engine.submit(make_submit(0, [5, 6, 5], max_tokens=3))
    assert chunks(engine.launch()) == [(1, 0, 3, True)]
    assert chunks(engine.launch()) == [(1, 3, 1, True)]
    engine.collect()
    assert chunks(engine.launch()) == [(1, 4, 1, True)]
    engine.collect()
    assert engine.launch() is None
    assert engine.scheduler.has_work
    engine.collect()
    assert engine.ledger.finished[0].reason == "length"
    assert engine.ledger.outputs[0] == [1, 1, 1]


def test_a_prompt_goes_on_while_its_chunk_is_computed() -> None:
    """Chunk k + 1 does not wait for the result of chunk k; blocks are found once it is there."""
    engine = Engine(lookahead=1, token_budget=8, block_size=4)
    engine.submit(make_submit(0, list(range(10, 30)), max_tokens=1))
    plans = [engine.launch(), engine.launch()]
    assert [chunks(plan) for plan in plans] == [[(1, 0, 8, False)], [(1, 8, 8, False)]]
    assert len(engine.scheduler.blocks._by_digest) == 0
    engine.collect()
    assert len(engine.scheduler.blocks._by_digest) == 2
    assert chunks(engine.launch()) == [(1, 16, 4, True)]


def test_results_come_in_the_order_of_the_plans() -> None:
    """A third plan, or a result out of order, is a bug of the caller and raises an error."""
    scheduler = make_scheduler(lookahead=1)
    scheduler.submit(1, make_submit(0, [5]), 0.0)
    first, second = planned(scheduler), planned(scheduler)
    with pytest.raises(RuntimeError, match="step 1 is not committed"):
        scheduler.plan()
    with pytest.raises(ValueError, match="result of step 2 does not answer"):
        scheduler.commit(second, answer(second))
    scheduler.commit(first, answer(first))
    scheduler.commit(second, answer(second))
    with pytest.raises(ValueError, match="does not answer None"):
        scheduler.commit(second, answer(second))


def test_a_stray_chunk_is_ignored() -> None:
    """A sequence that stopped is named by the plan that was made before; what comes is dropped,
    and its state may go before the plan after that.
    """
    scheduler = make_scheduler(lookahead=1)
    for number in range(2):
        scheduler.submit(1, make_submit(number, [5, number], max_tokens=9), 0.0)
    first, second = planned(scheduler), planned(scheduler)
    stop = StepResult(1, (Sampled(1, (EOS,)), Sampled(2, (1,))))
    finished = [m for _, m in scheduler.commit(first, stop) if isinstance(m, Finished)]
    assert [m.matched for m in finished] == [EOS]
    third = planned(scheduler)
    assert (second.ended, third.ended) == ((), (1,))
    assert [chunk.seq for chunk in second.chunks] == [1, 2]
    assert [chunk.seq for chunk in third.chunks] == [2]
    failed = StepResult(2, (Sampled(2, (1,)),), ((1, "no memory"),))
    (tokens,) = (message for _, message in scheduler.commit(second, failed))
    assert isinstance(tokens, Tokens)
    assert len(tokens.items) == 1


def test_a_sequence_may_be_preempted_while_it_is_computed() -> None:
    """A sequence may be preempted while it is computed: its token is sent, nothing of that step
    counts as computed, and it starts again after.
    """
    engine = Engine(lookahead=1, num_blocks=4, block_size=2, context_length=8)
    engine.submit(make_submit(0, [5, 6], max_tokens=6))
    engine.submit(make_submit(1, [6, 5], max_tokens=4))
    engine.step()
    engine.step()
    assert chunks(engine.step()) == [(1, 3, 1, True), (2, 3, 1, True)]
    assert chunks(engine.launch()) == [(1, 4, 1, True)]
    assert engine.scheduler.load(1, 0.0, 0.0).preemptions == 1
    assert engine.ledger.outputs[1] == [1, 1]
    engine.collect()
    assert engine.ledger.outputs[1] == [1, 1, 1]
    engine.drain()
    restart = next(plan for plan in engine.plans[4:] if plan.chunks[-1].seq == 2)
    assert chunks(restart)[-1][:3] == (2, 0, 5)
    assert engine.ledger.outputs[1] == [1, 1, 1, 1]


@pytest.mark.parametrize("ids", [(), (1, 2)])
def test_an_answer_of_no_or_several_tokens_must_not_surprise_the_next_plan(
    ids: tuple[int, ...],
) -> None:
    """The chunk that is planned already starts after exactly one."""
    scheduler = make_scheduler(lookahead=1)
    scheduler.submit(1, make_submit(0, [5], max_tokens=9), 0.0)
    first = planned(scheduler)
    planned(scheduler)
    with pytest.raises(ValueError, match="but there are"):
        scheduler.commit(first, StepResult(1, (Sampled(1, ids),)))


def test_an_equal_block_is_replaced_while_the_next_step_reads_it() -> None:
    """Two prompts of one step that begin alike, too little to wait for: the second takes the first
    one's block, from the plan after the one in flight on.
    """
    engine = Engine(lookahead=1, block_size=2, token_budget=32)
    for number in range(2):
        engine.submit(make_submit(number, [5, 6, *[number] * 7], max_tokens=5))
    engine.launch()
    before = engine.launch()
    engine.collect()
    after = engine.launch()
    assert before is not None
    assert after is not None
    first_blocks = [[chunk.block_ids[0] for chunk in plan.chunks] for plan in (before, after)]
    assert first_blocks == [[0, 5], [0, 0]]
    engine.drain()


def test_an_abort_in_flight_is_final() -> None:
    """An abort in flight is final: neither of two steps in flight sends anything after the end, and
    no `Accepted`.
    """
    engine = Engine(lookahead=1)
    engine.submit(make_submit(0, [5], max_tokens=9))
    engine.launch()
    engine.launch()
    engine.ledger.hear(engine.scheduler.abort(1, make_submit(0, [5]).request_id, 0))
    assert engine.scheduler.load(1, 0.0, 0.0).free_blocks == 16
    engine.collect()
    engine.collect()
    assert engine.ledger.accepted == {}
    assert engine.ledger.outputs[0] == []


def test_an_acceptance_is_told_once() -> None:
    """An acceptance is sent once, with the first result, whatever is planned by then."""
    scheduler = make_scheduler(lookahead=1)
    scheduler.submit(1, make_submit(0, [5], max_tokens=9), 0.0)
    first, second = planned(scheduler), planned(scheduler)
    messages = [*scheduler.commit(first, answer(first)), *scheduler.commit(second, answer(second))]
    assert sum(isinstance(message, Accepted) for _, message in messages) == 1


@pytest.mark.parametrize("lookahead", [-1, 2])
def test_only_one_step_may_be_planned_ahead(lookahead: int) -> None:
    """Further ahead a sequence would have several tokens that nobody knows."""
    with pytest.raises(ValueError, match="0 and 1"):
        make_scheduler(lookahead=lookahead)


def test_a_step_behind_drafts_has_blocks_for_all_that_may_be_accepted() -> None:
    """A step behind drafts has blocks for all tokens that may be accepted, also where a sequence
    near its end has no drafts of its own any more.
    """
    scheduler = make_scheduler(lookahead=1, block_size=4, proposer=CardDrafts(2))
    for number, max_tokens in enumerate((4, 30)):
        submit = make_submit(number, [5, 6, 5, number, 6], max_tokens=max_tokens)
        scheduler.submit(1, submit, 0.0)
    prompts, second = planned(scheduler), planned(scheduler)
    assert [(chunk.may_move, len(chunk.drafts)) for chunk in second.chunks] == [(0, 2), (0, 2)]
    scheduler.commit(prompts, answer(prompts))
    third = planned(scheduler)
    found = [(one.start, one.may_move, len(one.drafts), len(one.block_ids)) for one in third.chunks]
    assert [one[:3] for one in found] == [(6, 2, 0), (6, 2, 2)]
    assert found[0][3] == 3  # position 8 is in the third block
    sampled = tuple(Sampled(chunk.seq, (1, 1)) for chunk in second.chunks)
    scheduler.commit(second, StepResult(second.step, sampled))
    scheduler.check_integrity()
    scheduler.commit(third, answer(third))
    scheduler.check_integrity()
