"""Sequences with a grammar: they wait until it is compiled, and for each token before the next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import Finished, Grammar, Rejected
from tests.fakes.scheduling import EOS, Engine, make_scheduler, make_submit
from workers.scheduler import Key

GRAMMAR = Grammar("regex", "a")
READY = object()


def _key(number: int, link: int = 1) -> Key:
    return link, number.to_bytes(16, "little"), 0


def _seqs(engine: Engine) -> list[int]:
    """The sequences of the next step."""
    plan = engine.step()
    return [] if plan is None else [chunk.seq for chunk in plan.chunks]


def test_others_go_on_while_it_compiles() -> None:
    """It has a place and no part in any step; then it starts like a new one."""
    engine = Engine()
    engine.submit(make_submit(0, [1, 2], max_tokens=9, grammar=GRAMMAR))
    assert not engine.scheduler.has_work
    assert engine.scheduler.num_compiling == 1
    assert engine.scheduler.load(1, 0.0, 0.0).waiting == 1
    engine.submit(make_submit(1, [3, 4], max_tokens=9))
    (other,) = _seqs(engine)
    assert engine.scheduler.compiled(_key(0), READY, "") == ()
    assert engine.scheduler.num_compiling == 0
    plan = engine.step()
    assert plan is not None
    (start,) = plan.started
    assert start.grammar is READY
    assert {chunk.seq for chunk in plan.chunks} == {other, start.seq}
    engine.drain()
    assert engine.ledger.outputs[0] == [1] * 9


def test_a_grammar_that_fails_refuses_its_sequence_only() -> None:
    """A grammar that fails refuses its sequence only, with the reason; the place goes to the
    next.
    """
    engine = Engine(max_seqs=1)
    engine.submit(make_submit(0, [1], grammar=GRAMMAR))
    engine.submit(make_submit(1, [2], max_tokens=1))
    assert not engine.scheduler.has_work
    engine.ledger.hear(engine.scheduler.compiled(_key(0), None, "unknown key"))
    assert engine.ledger.rejected[0] == Rejected(_key(0)[1], 0, "grammar", "unknown key")
    engine.drain()
    assert engine.ledger.finished[1].reason == "length"


def test_an_engine_without_the_capability_refuses_by_name() -> None:
    """An engine without the capability refuses any grammar by name."""
    scheduler = make_scheduler(enforces_grammars=False)
    ((_, message),) = scheduler.submit(1, make_submit(0, [1], grammar=GRAMMAR), 0.0)
    assert isinstance(message, Rejected)
    assert (message.reason, message.detail) == ("grammar", "this engine enforces no grammars")


@pytest.mark.parametrize("end", ["abort", "deadline", "link"])
def test_it_may_end_while_it_compiles(end: str) -> None:
    """The result of the compiler is then dropped."""
    engine = Engine(max_seqs=1)
    engine.submit(make_submit(0, [1], grammar=GRAMMAR, deadline_s=5.0))
    engine.submit(make_submit(1, [2], max_tokens=1), link=2)
    if end == "abort":
        (message,) = engine.scheduler.abort(*_key(0))
        assert isinstance(message.message, Finished)
    elif end == "deadline":
        assert len(engine.scheduler.expire(6.0)) == 1
    else:
        engine.scheduler.drop_link(1)
    assert engine.scheduler.compiled(_key(0), READY, "") == ()
    engine.check()
    engine.drain()
    assert engine.ledger.finished[1].reason == "length"


def test_it_compiles_in_the_intake_queue_too() -> None:
    """A sequence whose grammar is ready by then starts at once when a place is free."""
    engine = Engine(max_seqs=1)
    engine.submit(make_submit(0, [1], max_tokens=1))
    engine.submit(make_submit(1, [2], max_tokens=1, grammar=GRAMMAR))
    engine.submit(make_submit(2, [2], max_tokens=1, grammar=GRAMMAR))
    engine.scheduler.compiled(_key(1), READY, "")
    engine.drain()
    assert set(engine.ledger.finished) == {0, 1}
    assert engine.scheduler.num_compiling == 1
    engine.scheduler.compiled(_key(2), READY, "")
    engine.drain()
    assert set(engine.ledger.finished) == {0, 1, 2}


def test_a_grammar_takes_part_in_every_step() -> None:
    """A grammar takes part in every step, with a lookahead too: the runner draws once the token
    before is known.
    """
    engine = Engine(lookahead=1, token_budget=8)
    engine.submit(make_submit(0, [1, 2], max_tokens=20))
    engine.submit(make_submit(1, [3, 4], max_tokens=6, grammar=GRAMMAR))
    engine.scheduler.compiled(_key(1), READY, "")
    engine.drain()
    ruled = {start.seq for plan in engine.plans for start in plan.started if start.grammar}
    (seq,) = ruled
    steps = [plan.step for plan in engine.plans if any(c.seq == seq for c in plan.chunks)]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert len(engine.plans) == 20
    assert engine.ledger.outputs[1] == [1] * 6


@given(
    num_blocks=st.integers(4, 12),
    lookahead=st.integers(0, 1),
    shapes=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 12), st.booleans()), min_size=1, max_size=6
    ),
    stops=st.integers(2, 9),
)
def test_all_of_them_end(
    num_blocks: int, lookahead: int, shapes: list[tuple[int, int, bool]], stops: int
) -> None:
    """All sequences with grammars end, with preemptions, among others, some stopped by a token; the
    books hold after every step.
    """
    engine = Engine(
        num_blocks=num_blocks, block_size=4, context_length=24, lookahead=lookahead, max_seqs=3
    )
    for number, (length, max_tokens, has_grammar) in enumerate(shapes):
        prompt = [(number + at) % 5 for at in range(length)]
        grammar = GRAMMAR if has_grammar else None
        engine.submit(make_submit(number, prompt, max_tokens=max_tokens, grammar=grammar))
        if has_grammar:
            engine.scheduler.compiled(_key(number), READY, "")
    drawn = 0

    def sample(_: int) -> tuple[int]:
        nonlocal drawn
        drawn += 1
        return (EOS,) if drawn % (stops * 3) == 0 else (drawn % 5,)

    engine.drain(sample)
    assert len(engine.ledger.finished) == len(shapes)
