"""What is taken, what is refused, and with which words."""

import math

import msgspec
import pytest

from protocol.messages import Finished, Rejected, RejectReason, Submit
from protocol.sampling import SamplingParams
from tests.fakes.scheduling import Engine, make_scheduler, make_submit
from workers.scheduler.scheduler import SchedulerLimits


def refusal(submit: Submit, **shape: int) -> Rejected:
    """The answer of a fresh scheduler, which must be a refusal."""
    ((link, message),) = make_scheduler(**shape).submit(1, submit, 0.0)
    assert link == 1
    assert isinstance(message, Rejected)
    return message


@pytest.mark.parametrize(
    ("submit", "reason", "words"),
    [
        (make_submit(0, [1], model="huge"), "unknown_model", "'huge' is not served; here: tiny"),
        (make_submit(0, [1], adapter="law"), "unknown_model", "adapter 'law' is not loaded"),
        (make_submit(0, []), "invalid", "no tokens"),
        (make_submit(0, [1, 99]), "invalid", "token id 99 is outside the vocabulary of 50"),
        (make_submit(0, [1], outputs=[50]), "invalid", "token id 50"),
        (make_submit(0, [1], deadline_s=math.nan), "invalid", "deadline_s"),
        (make_submit(0, [1] * 64), "too_long", "64 tokens and the context length is 64"),
    ],
)
def test_refusals_name_their_reason(submit: Submit, reason: RejectReason, words: str) -> None:
    """Each submission that can never run is refused at once, in words that say why."""
    message = refusal(submit, vocab_size=50, num_blocks=32)
    assert message.reason == reason
    assert words in message.detail


def test_a_torn_prompt_is_invalid() -> None:
    """Bytes that are no whole number of ids are refused."""
    submit = msgspec.structs.replace(make_submit(0, [1]), prompt_ids=b"12345")
    assert refusal(submit).reason == "invalid"


def test_a_prompt_over_the_whole_pool_is_too_long() -> None:
    """A prompt that all blocks together cannot hold is refused, instead of waiting for ever."""
    message = refusal(make_submit(0, [1] * 17), num_blocks=4)
    assert message.reason == "too_long"
    assert "17 tokens and the key-value cache holds 16" in message.detail


@pytest.mark.parametrize(("num_blocks", "window"), [(32, 64), (8, 32)])
def test_max_tokens_is_clamped_to_the_window(num_blocks: int, window: int) -> None:
    """A limit over what the context or the pool leaves ends the sequence there, by length."""
    engine = Engine(num_blocks=num_blocks)
    engine.submit(make_submit(0, [1, 2, 3], max_tokens=1000))
    engine.drain()
    assert engine.ledger.finished[0].reason == "length"
    assert len(engine.ledger.outputs[0]) == window - 3


def test_the_longest_prompt_gets_one_token() -> None:
    """A prompt one short of the window is taken and answered with one token."""
    engine = Engine()
    engine.submit(make_submit(0, [1] * 63))
    engine.drain()
    assert engine.ledger.outputs[0] == [1]


def test_a_full_engine_is_busy() -> None:
    """Beyond the places and the waiting places, a submission is refused as load."""
    engine = Engine(max_seqs=2, max_waiting=1)
    for number in range(4):
        engine.submit(make_submit(number, [1]))
    assert {number: r.reason for number, r in engine.ledger.rejected.items()} == {3: "busy"}
    engine.drain()
    assert sorted(engine.ledger.finished) == [0, 1, 2]


def test_an_attempt_is_taken_once() -> None:
    """The same attempt again is refused; another attempt and another link are other sequences."""
    scheduler = make_scheduler()
    assert scheduler.submit(1, make_submit(0, [1]), 0.0) == ()
    ((_, message),) = scheduler.submit(1, make_submit(0, [1]), 0.0)
    assert isinstance(message, Rejected)
    assert message.reason == "invalid"
    assert scheduler.submit(1, make_submit(0, [1], attempt=1), 0.0) == ()
    assert scheduler.submit(2, make_submit(0, [1]), 0.0) == ()


def test_a_completed_answer_is_finished_at_once() -> None:
    """When earlier attempts produced all tokens, there is nothing to run."""
    submit = make_submit(0, [1, 2], outputs=[3, 4], max_tokens=2)
    scheduler = make_scheduler()
    ((_, message),) = scheduler.submit(1, submit, 0.0)
    assert message == Finished(
        submit.request_id, 0, "length", prompt_tokens=2, cached_tokens=0, output_tokens=2
    )
    assert not scheduler.has_work


@pytest.mark.parametrize("shape", [(0, 1, 1, 0), (1, 0, 1, 0), (1, 1, 0, 0), (1, 1, 1, -1)])
def test_limits_must_allow_something(shape: tuple[int, int, int, int]) -> None:
    """Limits under which nothing could run are an error of the operator."""
    with pytest.raises(ValueError, match="could not run"):
        SchedulerLimits(*shape)


def test_a_small_budget_limits_the_places() -> None:
    """Every running sequence has at least one token of each step's budget."""
    engine = Engine(max_seqs=4, token_budget=2)
    for number in range(4):
        engine.submit(make_submit(number, [1]))
    plan = engine.step()
    assert plan is not None
    assert [chunk.length for chunk in plan.chunks] == [1, 1]


def test_the_sampling_reaches_the_runner() -> None:
    """The runner is told tokens, prompt length, sampling and seed, once."""
    engine = Engine()
    sampling = SamplingParams(max_tokens=5, temperature=0.5)
    engine.submit(make_submit(3, [1, 2], outputs=[4], sampling=sampling))
    engine.step()
    engine.step()
    (start,) = engine.plans[0].started
    assert list(start.token_ids) == [1, 2, 4]
    assert (start.num_prompt, start.sampling, start.seed) == (2, sampling, 3)
    assert engine.plans[1].started == ()
