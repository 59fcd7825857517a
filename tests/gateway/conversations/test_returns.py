"""When conversations are expected back."""

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from gateway.api import ChatRequest, Message
from gateway.conversations import ConversationBook, KnownConversation, TurnEnd, named_by
from gateway.conversations.hints import hint_of
from gateway.conversations.returns import (
    LOST_AFTER_S,
    NO_HINT,
    Away,
    Expected,
    Hint,
    ReturnModel,
)


@dataclass
class Talk:
    """A conversation."""

    away: Away | None = None


def played(model: ReturnModel, tool: str, pauses: list[float | None], key: str = "k") -> None:
    """Conversations of one turn each, with these pauses; None stays away."""
    now, talks = 0.0, [Talk() for _ in pauses]
    for talk, pause_s in zip(talks, pauses, strict=True):
        model.ended(talk, now, tool=tool, key=key)
        if pause_s is not None:
            model.returned(talk, now + pause_s)
        now += 1.0
    model.sweep(talks, now + LOST_AFTER_S)


def expected(model: ReturnModel, tool: str, key: str = "k", hint: Hint = NO_HINT) -> Expected:
    return model.ended(Talk(), 1e6, tool=tool, key=key, hint=hint)


def test_pauses_are_learned_by_tool() -> None:
    model, chance = ReturnModel(), Random(3)
    played(model, "read", [chance.uniform(0.05, 0.2) for _ in range(60)])
    played(model, "tests", [chance.uniform(20, 60) for _ in range(60)])
    read, tests = expected(model, "read"), expected(model, "tests")
    assert read.within_s < 0.5
    assert 10 < tests.within_s < 80
    assert min(read.chance, tests.chance) > 0.9


def test_what_stays_away_lowers_the_chance() -> None:
    model = ReturnModel()
    played(model, "", [30.0, None, None, None] * 20)
    assert expected(model, "").chance == pytest.approx(0.25, abs=0.1)


def test_a_new_key_starts_from_the_tool_and_a_new_tool_from_all() -> None:
    model = ReturnModel()
    before = expected(model, "build")
    played(model, "build", [100.0] * 80)
    assert expected(model, "build", key="other").within_s > 30 > before.within_s
    played(model, "build", [1.0] * 80, key="fast")
    assert expected(model, "build", key="fast").within_s < 5


def test_hints_sharpen_and_an_end_is_an_end() -> None:
    model = ReturnModel()
    plain = expected(model, "")
    assert expected(model, "", hint=Hint(is_over=True)).chance == 0.0
    assert expected(model, "", hint=Hint(comes=True)).chance == 0.98
    kept = expected(model, "read", hint=Hint(keep_s=3600.0))
    assert kept.within_s == 60.0
    assert kept.chance >= plain.chance


def test_few_conversations_are_away_and_all_others_count() -> None:
    """Seven a second that each send one request: more than the book holds until they are lost."""
    model = ReturnModel()
    book = ConversationBook(model.forget)
    all_of_them: list[KnownConversation] = []
    for number in range(16_800):
        now = number / 7
        request = ChatRequest("alpha", (Message("user", f"question {number}"),), {})
        visit = book.enter(named_by({}, request), "k", "", request, now)
        assert visit is not None
        all_of_them.append(visit.conversation)
        model.ended(visit.conversation, now, tool="", key="k")
        book.leave(visit, now, TurnEnd())
        if number % 420 == 0:
            model.sweep(book.all(), now)
    assert sum(one.away is not None for one in all_of_them) <= 4096
    assert expected(model, "").chance < 0.05


def test_tables_are_bounded() -> None:
    model = ReturnModel()
    for number in range(20_000):
        talk = Talk()
        model.ended(talk, float(number), tool=f"t{number % 5000}", key=str(number % 7))
        if number % 2:
            model.returned(talk, number + 0.5)
    assert len(model._groups) <= 2048


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        ({}, NO_HINT),
        ({"prompt_cache_retention": "24h"}, Hint(86_400.0)),
        ({"prompt_cache_retention": "in_memory"}, Hint(300.0)),
        ({"prompt_cache_retention": 5}, NO_HINT),
        ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, Hint(3600.0)),
        ({"tools": [{}, {"cache_control": {"type": "ephemeral"}}]}, Hint(300.0)),
        ({"system": [{"cache_control": {"type": "ephemeral", "ttl": "5m"}}]}, Hint(300.0)),
        (
            {"messages": [{"content": [{"cache_control": {"type": "ephemeral", "ttl": "1h"}}]}]},
            Hint(3600.0),
        ),
        ({"messages": [{"content": "text"}], "system": "text", "tools": None}, NO_HINT),
        ({"nvext": {"agent_hints": {"speculative_prefill": True}}}, Hint(comes=True)),
        ({"nvext": {"session_control": {"action": "close"}}}, Hint(is_over=True)),
        ({"nvext": "x"}, NO_HINT),
    ],
)
def test_what_counts_as_a_hint(raw: dict[str, Any], hint: Hint) -> None:
    assert hint_of(raw) == hint
