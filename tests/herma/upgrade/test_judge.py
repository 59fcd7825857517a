"""Answers and speeds of two versions, compared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herma.upgrade.judge import (
    MUST_AGREE,
    NEAR_TIE,
    questions,
    speed_of,
    too_slow,
    wrong_answers,
)
from protocol.control_messages import ProbedAnswer
from workers.starts import SLOWER

tokens = st.lists(st.integers(0, 3), min_size=1, max_size=12)


@given(ids=tokens, leads=st.lists(st.floats(0, 20), min_size=12, max_size=12))
def test_the_same_answer_is_right(ids: list[int], leads: list[float]) -> None:
    """The same answer is right, with and without log probabilities."""
    one = ProbedAnswer(tuple(ids), tuple(leads[: len(ids)]))
    assert not list(wrong_answers([one], [ProbedAnswer(tuple(ids))]))
    assert not list(wrong_answers([ProbedAnswer(tuple(ids))], [one]))


@given(ids=tokens, data=st.data(), lead=st.floats(0, 20))
def test_another_token_counts_by_its_lead(ids: list[int], data: st.DataObject, lead: float) -> None:
    """At a near tie nothing counts any more, neither that token nor those behind it."""
    at = data.draw(st.integers(0, len(ids) - 1))
    rest = data.draw(st.lists(st.integers(4, 9), min_size=len(ids) - at, max_size=len(ids) - at))
    leads = [20.0] * len(ids)
    leads[at] = lead
    old, new = ProbedAnswer(tuple(ids), tuple(leads)), ProbedAnswer((*ids[:at], *rest))
    found = list(wrong_answers([old], [new]))
    assert bool(found) == (lead > NEAR_TIE)
    assert all(f"token {at + 1} is {rest[0]} instead of {ids[at]}" in line for line in found)


@pytest.mark.parametrize("at", [0, MUST_AGREE - 1, MUST_AGREE])
def test_without_leads_the_beginning_must_agree(at: int) -> None:
    """What follows may have been a near tie."""
    old = ProbedAnswer(tuple(range(8)))
    new = ProbedAnswer((*range(at), 99, *range(at + 1, 8)))
    assert bool(list(wrong_answers([old], [new]))) == (at < MUST_AGREE)


def test_fewer_tokens_are_wrong() -> None:
    """Fewer tokens are wrong, as of an engine that ends its answers early."""
    found = list(wrong_answers([ProbedAnswer((1, 2, 3))], [ProbedAnswer((1, 2))]))
    assert found == ["question 1: 2 tokens instead of 3"]


def test_texts_are_compared_by_their_first_words() -> None:
    """Texts of an engine that gives no tokens are compared by their first words."""
    old = ProbedAnswer(text="The sea is wide and blue today.")
    assert not list(wrong_answers([old], [ProbedAnswer(text="The  sea is wide indeed.")]))
    (line,) = wrong_answers([old], [ProbedAnswer(text="")])
    assert line == "question 1: it begins with '' instead of 'The sea is wide'"


def test_a_tenth_is_too_slow() -> None:
    """No speed is known of some engines, which says nothing."""
    assert too_slow(100.0, SLOWER * 100.0) is None
    assert too_slow(0.0, 1.0) is None
    assert too_slow(100.0, 0.0) is None
    line = too_slow(100.0, 70.0)
    assert line == "answers at 70.0 tokens/s, 30% slower than the 100.0 before"
    assert speed_of([ProbedAnswer(tokens_per_s=3.0), ProbedAnswer(tokens_per_s=7.0)]) == 7.0
    assert speed_of([]) == 0.0


def test_the_questions_are_fixed_and_within_any_vocabulary() -> None:
    """With a tokenizer they are its ids."""
    plain = questions(None)
    assert plain == questions(None)
    assert all(0 < max(one.ids) < 32 for one in plain)
    assert len({one.ids for one in plain}) == len(plain)
    assert [one.ids for one in questions(lambda text: [len(text)])] == [
        (len(one.text),) for one in plain
    ]
