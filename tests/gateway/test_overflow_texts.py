"""A prompt that is larger than the window, in the words by which real clients know it."""

from typing import Any

import msgspec
import pytest

from gateway.api import ApiError, context_length_exceeded, overflow_error
from gateway.api.messages_formatter import message_error
from gateway.upstream.error_words import error_of
from tests.fakes.hermes_words import OVERFLOW, window_in
from tests.fakes.overflow_words import CHAT, MESSAGES, ONLY_BY_NUMBERS, RATE, Told

OF_OTHERS = (
    {"error": {"message": "Input length (5000) exceeds model's maximum context length (4096)."}},
    {"error": {"message": "the request exceeds the available context size, try increasing it"}},
    {"error": {"message": "The input is too long.", "code": "context_window_exceeded"}},
    {"message": "Prompt too long"},
)
"""Refusals of servers behind the gateway."""


def _told(error: ApiError) -> Told:
    fields = msgspec.json.decode(error.body())["error"]
    return Told(fields["message"], fields["code"], fields["type"])


def _texts() -> list[Any]:
    return [
        pytest.param(context_length_exceeded(65_536, 70_000, field, is_least=is_least))
        for field in ("messages", "input", "prompt")
        for is_least in (False, True)
    ]


@pytest.mark.parametrize("client", CHAT)
@pytest.mark.parametrize("error", _texts())
def test_every_client_knows_our_own(error: ApiError, client: str) -> None:
    """Every client knows our own error, in each field and form of the text, by the words or the
    code that it reads.
    """
    told = _told(error)
    assert CHAT[client](told)
    assert not RATE(told)


@pytest.mark.parametrize("client", ONLY_BY_NUMBERS)
def test_the_numbers_stand_where_clients_look(client: str) -> None:
    """The window and the tokens of the prompt."""
    assert ONLY_BY_NUMBERS[client](_told(context_length_exceeded(65_536, 70_000)))


@pytest.mark.parametrize("body", OF_OTHERS, ids=lambda one: str(one)[:60])
def test_what_a_server_says_in_its_own_words_has_the_code_in_its_text(body: Any) -> None:
    """Behind a gateway no client knows which server it is."""
    error = error_of(400, msgspec.json.encode(body))
    assert error is not None
    told = _told(error)
    assert told.code == "context_length_exceeded"
    names = ("langchain-openai 1.7.4", "pi 1.6.0", "opencode 1.18.33", "Continue 1.5.47")
    assert all(CHAT[name](told) for name in names), told


def test_the_code_stands_once() -> None:
    """A gateway behind a gateway adds nothing."""
    error = overflow_error(context_length_exceeded(65_536, 70_000).message)
    assert error.message.count("context_length_exceeded") == 1


@pytest.mark.parametrize("client", MESSAGES)
def test_every_client_of_messages_knows_it(client: str) -> None:
    """Every client of Messages knows the error in Anthropic's words."""
    error = context_length_exceeded(65_536, 70_000)
    fields = msgspec.json.decode(message_error(error, "req_1"))["error"]
    assert MESSAGES[client](Told(fields["message"], None, fields["type"]))


def test_hermes_agent_finds_the_window() -> None:
    """Hermes Agent finds the window in the text, and none of its other words."""
    text = context_length_exceeded(65_536, 70_000).message
    assert window_in(text) == 65_536
    assert any(word in text.lower() for word in OVERFLOW)
