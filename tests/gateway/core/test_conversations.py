"""Conversations without session keys."""

from gateway.core.conversations import MAX_RECENT, RECENT_S, Conversations
from protocol.ids import BlockDigest
from tests.fakes.fleet import W1, W2, chain

SHARED = ("system", 8)


def _turn(
    memory: Conversations, ticket: int, digests: tuple[BlockDigest, ...], key: str = "k"
) -> str:
    name = memory.recognise(key, None, digests, ticket)
    memory.record(name, digests, W1, 0.0)
    return name


def test_a_session_key_names_the_conversation_within_its_api_key() -> None:
    """The same session key of two API keys is two conversations."""
    memory = Conversations()
    assert memory.recognise("a", "s", chain(SHARED), 1) != memory.recognise("b", "s", (), 2)
    assert memory.recognise("a", "s", (), 3) == memory.recognise("a", "s", chain(SHARED), 4)


def test_a_next_turn_is_recognised_by_its_prompt() -> None:
    """A prompt that continues an earlier one belongs to its conversation, over many turns."""
    memory = Conversations()
    names = {_turn(memory, n, chain(SHARED, ("ann", n))) for n in range(1, 9)}
    others = {_turn(memory, 10 + n, chain(SHARED, ("bob", n))) for n in range(1, 9)}
    assert len(names) == len(others) == 1
    assert names != others


def test_equal_openings_are_different_conversations() -> None:
    """Sixteen agents that so far share every full block count as sixteen."""
    memory = Conversations()
    assert len({_turn(memory, n, chain(SHARED)) for n in range(16)}) == 16


def test_another_api_key_never_continues_a_conversation() -> None:
    """A prompt with the same blocks under another API key is another conversation."""
    memory = Conversations()
    first = _turn(memory, 1, chain(SHARED))
    assert _turn(memory, 2, chain(SHARED, ("more", 1)), key="other") != first


def test_shared_prefixes_count_other_recent_conversations() -> None:
    """One length per other conversation, ascending; old and own ones do not count."""
    memory = Conversations()
    own = _turn(memory, 1, chain(SHARED, ("ann", 4)))
    _turn(memory, 2, chain(SHARED, ("bob", 4)))
    _turn(memory, 3, chain(SHARED, ("ann", 2), ("cat", 1)))
    _turn(memory, 4, chain(("else", 9)))
    prompt = chain(SHARED, ("ann", 6))
    assert memory.shared_prefixes(own, prompt, 0.0) == [8, 10]
    assert memory.shared_prefixes(own, prompt, RECENT_S + 1) == []


def test_memory_is_bounded_and_knows_the_last_home() -> None:
    """Only the newest chains are compared; the last worker of a conversation is known."""
    memory = Conversations()
    for n in range(2 * MAX_RECENT):
        _turn(memory, n, chain(SHARED, (f"agent {n}", 2)))
    assert len(memory.shared_prefixes("new", chain(SHARED), 0.0)) == MAX_RECENT
    memory.record("k/s", (), W2, 0.0)
    assert memory.home("k/s") == W2
    assert memory.home("k/unknown") is None
