"""Steps, messages and endings by example."""

import pytest

from protocol.messages import (
    Accepted,
    BlocksSnapshot,
    BlocksStored,
    Finished,
    SequenceAlive,
    TokenItem,
    TokenLogprobs,
    Tokens,
)
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens
from tests.fakes.scheduling import EOS, Engine, make_scheduler, make_submit
from workers.ipc.framing import BROADCAST
from workers.scheduler.plan import Sampled, StepPlan, StepResult


def lengths(plan: StepPlan | None) -> dict[int, int]:
    """The chunk lengths of a plan by sequence."""
    assert plan is not None
    return {chunk.seq: chunk.length for chunk in plan.chunks}


def test_a_request_from_start_to_end() -> None:
    """Accepted, then its tokens step by step, then finished, then the blocks it left behind."""
    scheduler = make_scheduler(block_size=2)
    submit = make_submit(0, [1, 2, 3], max_tokens=2)
    assert scheduler.submit(5, submit, 0.0) == ()
    plan = scheduler.plan()
    assert plan is not None
    (chunk,) = plan.chunks
    assert (chunk.start, chunk.length, len(chunk.block_ids), chunk.samples) == (0, 3, 2, True)
    first = scheduler.commit(plan, StepResult(1, (Sampled(1, (8,)),)))
    assert [link for link, _ in first] == [5, 5, BROADCAST]
    assert first[0].message == Accepted(submit.request_id, 0, 0)
    assert first[1].message == Tokens(1, (TokenItem(submit.request_id, 0, 0, pack_tokens([8])),))
    assert isinstance(first[2].message, BlocksStored)
    plan = scheduler.plan()
    assert plan is not None
    second = scheduler.commit(plan, StepResult(2, (Sampled(1, (9,)),)))
    assert second[0].message == Tokens(2, (TokenItem(submit.request_id, 0, 1, pack_tokens([9])),))
    assert second[1].message == Finished(
        submit.request_id, 0, "length", prompt_tokens=3, cached_tokens=0, output_tokens=2
    )
    assert scheduler.plan() is None


def test_prefill_chunks_and_decodes_share_a_step() -> None:
    """Decodes take one token each of a step; a long prompt takes what is left of the budget, but a
    short one that waits is done beside it.
    """
    engine = Engine(token_budget=8, num_blocks=32)
    engine.submit(make_submit(0, [1, 2], max_tokens=20))
    engine.step()
    engine.submit(make_submit(1, list(range(20)), max_tokens=2))
    engine.submit(make_submit(2, [3, 4], max_tokens=2))
    steps = [lengths(engine.step()) for _ in range(4)]
    assert steps == [{1: 1, 2: 7}, {1: 1, 3: 2, 2: 5}, {1: 1, 3: 1, 2: 6}, {1: 1, 2: 2}]
    samples = [[chunk.samples for chunk in plan.chunks] for plan in engine.plans[1:4]]
    assert samples == [[True, False], [True, True, False], [True, True, False]]


def test_long_prompts_follow_each_other() -> None:
    """Side by side the first would be done later, and the second no earlier."""
    engine = Engine(token_budget=8, num_blocks=32)
    engine.submit(make_submit(0, list(range(20)), max_tokens=1))
    engine.submit(make_submit(1, list(range(30, 50)), max_tokens=1))
    steps = [lengths(engine.step()) for _ in range(5)]
    assert steps == [{1: 8}, {1: 8}, {1: 4, 2: 4}, {2: 8}, {2: 8}]


def test_short_prompts_leave_half_to_a_long_one() -> None:
    """Short ones that keep coming slow a long prompt down, but do not stop it."""
    engine = Engine(token_budget=8, num_blocks=64, max_seqs=8)
    engine.submit(make_submit(0, list(range(20)), max_tokens=1))
    engine.step()
    for number in range(1, 7):
        engine.submit(make_submit(number, [number, 5], max_tokens=1))
    steps = [lengths(engine.step()) for _ in range(3)]
    assert steps == [{2: 2, 3: 2, 1: 4}, {4: 2, 5: 2, 1: 4}, {6: 2, 7: 2, 1: 4}]


def test_cached_tokens_are_reported_and_not_computed() -> None:
    """A follow-up turn computes only what its predecessor has not, generated tokens included."""
    engine = Engine(block_size=2)
    engine.submit(make_submit(0, [1, 2, 3], max_tokens=4))
    engine.drain(lambda _: (9,))
    before = engine.runner.num_computed
    engine.submit(make_submit(1, [1, 2, 3, 9, 9, 9, 4, 5], max_tokens=1))
    engine.drain()
    assert engine.ledger.accepted[1].cached_tokens == 6
    assert engine.ledger.finished[1].cached_tokens == 6
    assert engine.runner.num_computed - before == 2


def test_salts_do_not_share() -> None:
    """A private cache hits nothing of others."""
    engine = Engine(block_size=2)
    engine.submit(make_submit(0, [1, 2, 3]))
    engine.drain()
    engine.submit(make_submit(1, [1, 2, 3], salt=b"own"))
    engine.drain()
    assert engine.ledger.accepted[1].cached_tokens == 0


def test_a_resumed_sequence_continues() -> None:
    """Earlier outputs are computed with the prompt; offsets, limits and counts include them."""
    engine = Engine(block_size=2)
    engine.submit(make_submit(0, [1, 2], outputs=[3, 4, 5], max_tokens=5))
    engine.drain(lambda _: (6,))
    assert lengths(engine.plans[0]) == {1: 5}
    assert engine.ledger.outputs[0] == [3, 4, 5, 6, 6]
    assert engine.ledger.finished[0].output_tokens == 5
    engine.submit(make_submit(1, [1, 2], outputs=[3, 4, 5], max_tokens=5))
    engine.drain(lambda _: (6,))
    assert lengths(engine.plans[2]) == {2: 1}
    assert engine.ledger.accepted[1].cached_tokens == 2, "only prompt tokens are reported"


@pytest.mark.parametrize(
    ("sampling", "ids", "sent", "reason", "matched"),
    [
        (SamplingParams(9), (1, EOS, 2), [1], "stop", EOS),
        (SamplingParams(9), (EOS,), [], "stop", EOS),
        (SamplingParams(9, stop_token_ids=(5,)), (1, 2, 5), [1, 2], "stop", 5),
        (SamplingParams(9, stop_token_ids=(5,), ignore_eos=True), (EOS, 5), [EOS], "stop", 5),
        (SamplingParams(2), (1, 2, EOS), [1, 2], "length", None),
        (SamplingParams(3), (1, 2, EOS), [1, 2], "stop", EOS),
        (SamplingParams(2, ignore_eos=True), (EOS, EOS), [EOS, EOS], "length", None),
    ],
)
def test_where_sampled_ids_are_cut(
    sampling: SamplingParams,
    ids: tuple[int, ...],
    sent: list[int],
    reason: str,
    matched: int | None,
) -> None:
    """The first stop token or the limit ends the sequence; a stop token is counted, not sent."""
    engine = Engine()
    engine.submit(make_submit(0, [1], sampling=sampling))
    engine.step(lambda _: ids)
    finished = engine.ledger.finished[0]
    assert engine.ledger.outputs[0] == sent
    assert (finished.reason, finished.matched) == (reason, matched)
    assert finished.output_tokens == len(sent) + (matched is not None)


def test_logprobs_are_cut_with_their_ids() -> None:
    """There is one logprob per token that is sent."""
    scheduler = make_scheduler()
    scheduler.submit(1, make_submit(0, [1], sampling=SamplingParams(9, logprobs=0)), 0.0)
    plan = scheduler.plan()
    assert plan is not None
    logprobs = (TokenLogprobs(-0.5), TokenLogprobs(-1.5))
    outgoing = scheduler.commit(plan, StepResult(1, (Sampled(1, (2, EOS), logprobs),)))
    tokens = outgoing[1].message
    assert isinstance(tokens, Tokens)
    assert tokens.items[0].logprobs == logprobs[:1]


def test_several_ids_in_a_step_are_computed_in_the_next() -> None:
    """Ids that came together are all sent at once, and their positions are computed next."""
    engine = Engine(block_size=2)
    engine.submit(make_submit(0, [1, 2], max_tokens=9))
    engine.step(lambda _: (3, 4, 5))
    assert engine.ledger.outputs[0] == [3, 4, 5]
    assert lengths(engine.step()) == {1: 3}


def test_a_token_that_is_not_there_yet_is_asked_for_again() -> None:
    """A token that is not there yet is asked for again: without ids the position comes again,
    alone, and nothing is sent meanwhile.
    """
    engine = Engine(block_size=2)
    engine.submit(make_submit(0, [1, 2, 3, 4], max_tokens=2))
    engine.step(lambda _: ())
    assert (engine.ledger.outputs[0], engine.ledger.accepted.keys()) == ([], {0})
    assert lengths(engine.step(lambda _: ())) == {1: 1}
    assert lengths(engine.step(lambda _: (5,))) == {1: 1}
    assert lengths(engine.step(lambda _: (6,))) == {1: 1}
    assert engine.ledger.outputs[0] == [5, 6]
    assert engine.ledger.finished[0].reason == "length"


def test_one_frame_per_link_and_step() -> None:
    """The tokens of all sequences of a gateway travel together, and no others with them."""
    scheduler = make_scheduler()
    for number, link in enumerate((1, 2, 1)):
        scheduler.submit(link, make_submit(number, [1]), 0.0)
    plan = scheduler.plan()
    assert plan is not None
    outgoing = scheduler.commit(
        plan, StepResult(1, tuple(Sampled(chunk.seq, (4,)) for chunk in plan.chunks))
    )
    frames = [(link, m) for link, m in outgoing if isinstance(m, Tokens)]
    numbers = {link: [item.request_id[0] for item in m.items] for link, m in frames}
    assert len(frames) == 2
    assert numbers == {1: [0, 2], 2: [1]}


def test_the_latest_is_preempted_and_repeats_nothing() -> None:
    """When blocks run out the latest gives way, and later continues where it was."""
    engine = Engine(num_blocks=8, block_size=2, context_length=16)
    engine.submit(make_submit(0, [1, 2, 3], max_tokens=12))
    engine.submit(make_submit(1, [4, 5, 6], max_tokens=12))
    ids = {1: iter(range(10, 30)), 2: iter(range(40, 60))}
    engine.drain(lambda seq: (next(ids[seq]),))
    load = engine.scheduler.load(1, 0.0, 0.0)
    assert load.preemptions > 0
    assert engine.ledger.outputs == {0: list(range(10, 22)), 1: list(range(40, 52))}
    assert [start.seq for plan in engine.plans for start in plan.started] == [1, 2]
    assert list(engine.ledger.finished) == [0, 1]
    assert [m.cached_tokens for m in engine.ledger.finished.values()] == [0, 0]


def test_the_preempted_one_is_reported_to_live() -> None:
    """A preempted sequence is reported as alive, because its gateway would take its silence for a
    loss; sequences that get tokens need no such message.
    """
    engine = Engine(num_blocks=8, block_size=2, context_length=16)
    engine.submit(make_submit(0, [1, 2, 3], max_tokens=12))
    engine.submit(make_submit(1, [4, 5, 6], max_tokens=12))
    assert engine.scheduler.signs_of_life() == ()
    while not engine.scheduler.load(1, 0.0, 0.0).preemptions:
        engine.step()
    (sign,) = engine.scheduler.signs_of_life()
    preempted = make_submit(1, [4, 5, 6])
    assert sign.message == SequenceAlive(preempted.request_id, preempted.attempt)
    engine.drain()
    assert engine.scheduler.signs_of_life() == ()


def test_the_oldest_waits_for_nobody() -> None:
    """A head that finds no room holds back those behind it: nobody starves for small ones."""
    engine = Engine(num_blocks=8, block_size=2, context_length=16)
    engine.submit(make_submit(0, [1, 2, 3], max_tokens=4))
    engine.step()
    engine.submit(make_submit(1, [5] * 14, max_tokens=2))
    engine.submit(make_submit(2, [6], max_tokens=1))
    engine.drain()
    assert list(engine.ledger.finished) == [0, 1, 2]


def test_an_abort_frees_blocks_for_the_next_plan() -> None:
    """After one abort the next plan uses the blocks, and the runner is told to forget."""
    engine = Engine(num_blocks=5, block_size=2)
    engine.submit(make_submit(0, [1] * 7))
    engine.step()
    engine.submit(make_submit(1, [2] * 7))
    assert lengths(engine.step()) == {1: 1}
    engine.ledger.hear(engine.scheduler.abort(1, make_submit(0, [1]).request_id, 0))
    assert engine.ledger.finished[0].reason == "abort"
    assert engine.ledger.finished[0].output_tokens == len(engine.ledger.outputs[0])
    plan = engine.step()
    assert lengths(plan) == {2: 7}
    assert plan is not None
    assert plan.ended == (1,)


def test_aborts_of_strangers_are_ignored() -> None:
    """An unknown id, another attempt or another link ends nothing."""
    scheduler = make_scheduler()
    submit = make_submit(0, [1], attempt=2)
    scheduler.submit(1, submit, 0.0)
    assert scheduler.abort(1, bytes(15) + b"x", 2) == ()
    assert scheduler.abort(1, submit.request_id, 1) == ()
    assert scheduler.abort(2, submit.request_id, 2) == ()
    assert scheduler.has_work


def test_an_abort_in_flight_drops_the_tokens() -> None:
    """What a step computed for a sequence that was aborted meanwhile is not sent."""
    engine = Engine()
    engine.submit(make_submit(0, [1]))
    plan = engine.scheduler.plan()
    assert plan is not None
    engine.ledger.hear(engine.scheduler.abort(1, make_submit(0, [1]).request_id, 0))
    assert engine.scheduler.commit(plan, StepResult(1, (Sampled(1, (3,)),))) == ()
    assert engine.scheduler.plan() is None


def test_a_lost_link_ends_its_sequences_silently() -> None:
    """The work of a gateway that is gone stops; that of others goes on."""
    engine = Engine()
    for number, link in enumerate((1, 2, 1)):
        engine.submit(make_submit(number, [1]), link=link)
    engine.step()
    engine.scheduler.drop_link(1)
    engine.drain()
    assert list(engine.ledger.finished) == [1]


def test_deadlines_end_running_and_waiting_sequences() -> None:
    """A deadline counts from arrival; what has ended before is not told again."""
    engine = Engine(max_seqs=2)
    engine.submit(make_submit(0, [1], max_tokens=50, deadline_s=5.0), now=10.0)
    engine.submit(make_submit(1, [1], max_tokens=1, deadline_s=5.0), now=10.0)
    engine.step()
    engine.submit(make_submit(2, [1], max_tokens=50), now=10.0)
    engine.submit(make_submit(3, [1], deadline_s=4.0), now=10.0)
    assert engine.scheduler.expire(13.9) == ()
    engine.ledger.hear(engine.scheduler.expire(15.0))
    details = {number: m.detail for number, m in engine.ledger.finished.items()}
    assert details == {0: "deadline passed", 1: "", 3: "deadline passed"}
    assert engine.ledger.finished[3].reason == "abort"


def test_a_deadline_is_of_one_submission() -> None:
    """The deadline of an aborted submission does not end a later one of the same name."""
    engine = Engine()
    engine.submit(make_submit(0, [1], deadline_s=5.0))
    engine.scheduler.abort(1, make_submit(0, [1]).request_id, 0)
    engine.submit(make_submit(0, [1]))
    assert engine.scheduler.expire(6.0) == ()
    assert engine.scheduler.has_work


def test_the_latest_arrived_is_preempted_first() -> None:
    """Preempted sequences start again in the order in which they arrived."""
    engine = Engine(num_blocks=9, block_size=2, context_length=18, max_seqs=3)
    for number in range(3):
        engine.submit(make_submit(number, [number, 5, 6], max_tokens=12))
    engine.drain()
    assert engine.scheduler.load(1, 0.0, 0.0).preemptions >= 2
    assert list(engine.ledger.finished) == [0, 1, 2]
    order = [[chunk.seq for chunk in plan.chunks] for plan in engine.plans]
    assert all(seqs == [1, 2, 3][seqs[0] - 1 :][: len(seqs)] for seqs in order)


def test_a_failed_sequence_ends_with_its_reason() -> None:
    """An error in one sequence is told to its gateway; the others keep running."""
    engine = Engine(block_size=2)
    engine.submit(make_submit(0, [1, 2, 3]))
    engine.submit(make_submit(1, [1, 2, 4]))
    engine.step(failing=lambda seq: seq == 1)
    finished = engine.ledger.finished[0]
    assert (finished.reason, finished.detail) == ("error", "no memory")
    engine.drain()
    assert engine.ledger.finished[1].reason == "length"


def test_a_runner_that_skips_a_sequence_is_an_error() -> None:
    """A sequence that was to be sampled needs a token or a failure; silence would hang it."""
    scheduler = make_scheduler()
    scheduler.submit(1, make_submit(0, [1]), 0.0)
    plan = scheduler.plan()
    assert plan is not None
    with pytest.raises(ValueError, match="did not answer for sequence 1"):
        scheduler.commit(plan, StepResult(1, ()))


def test_plans_and_results_alternate() -> None:
    """A second plan, or a result of another step, is a bug of the caller and raises an error."""
    scheduler = make_scheduler()
    scheduler.submit(1, make_submit(0, [1]), 0.0)
    plan = scheduler.plan()
    assert plan is not None
    with pytest.raises(RuntimeError, match="step 1 is not committed"):
        scheduler.plan()
    with pytest.raises(ValueError, match="result of step 2"):
        scheduler.commit(plan, StepResult(2, ()))


def test_a_snapshot_follows_the_events() -> None:
    """The snapshot holds every stored digest and the number of the last event."""
    engine = Engine(block_size=2)
    assert engine.scheduler.snapshot() == BlocksSnapshot(0, b"")
    engine.submit(make_submit(0, [1, 2, 3], max_tokens=4))
    engine.drain()
    snapshot = engine.scheduler.snapshot()
    assert snapshot.seq == engine.ledger.seq == 3
    assert len(snapshot.digests) == 16 * 3


def test_the_load_counts() -> None:
    """The counters say who runs, who waits and which blocks nobody holds."""
    engine = Engine(max_seqs=1, num_blocks=8, block_size=2)
    engine.submit(make_submit(0, [1, 2, 3]))
    engine.submit(make_submit(1, [1, 2, 3]))
    engine.step()
    load = engine.scheduler.load(3, 1.5, 2000.0)
    assert (load.epoch, load.running, load.waiting, load.steps) == (3, 1, 1, 1)
    assert (load.free_blocks, load.num_blocks, load.preemptions) == (6, 8, 0)
    assert (load.step_ms, load.prefill_tokens_per_s) == (1.5, 2000.0)
