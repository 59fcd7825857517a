"""Who asks, and which conversation it is."""

import pytest

from config import KeyConfig
from gateway.api.request import MAX_SESSION_CHARS
from gateway.conversations.names import STRONG
from gateway.http.auth import SESSION_HEADERS, session_of_headers
from gateway.turn.caller import Caller


def session_in(headers: list[tuple[bytes, bytes]]) -> str | None:
    return session_of_headers(headers, dict(headers))


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_every_known_header_names_the_conversation(name: bytes) -> None:
    """Clients differ in the header that they use."""
    assert session_in([(b"host", b"x"), (name, b"abc")]) == "abc"


def test_the_most_telling_header_wins() -> None:
    """The order of the headers in the request does not matter."""
    headers = [(b"x-client-request-id", b"b"), (b"x-session-id", b"a"), (b"thread-id", b"")]
    assert session_in(headers) == "a"
    assert session_in([(b"thread-id", b"")]) is None
    assert session_in([(b"thread-id", b"x" * 1000)]) == "x" * MAX_SESSION_CHARS


def test_a_key_gives_its_rights() -> None:
    """Weight, cache and cloud rights follow from the key's table."""
    key = KeyConfig(
        name="alice", hash="sha256:" + "0" * 64, weight=2.0, cache="private", cloud="never"
    )
    caller = Caller.of_key(key, "s1")
    assert caller == Caller("alice", 2.0, private_cache=True, cloud=False, session="s1")


def test_secrets_are_not_shown() -> None:
    """What a caller sent may hold its key; it must not get into a log."""
    caller = Caller("alice", headers=((b"authorization", b"Bearer secret"),))
    assert "secret" not in repr(caller)
    assert "secret" not in str(caller)


@pytest.mark.parametrize("name", STRONG)
def test_what_names_a_conversation_in_the_books_names_it_for_routing_too(name: bytes) -> None:
    """mistral-vibe's `x-affinity` did in the books alone."""
    assert session_in([(name, b"one")]) == "one"
