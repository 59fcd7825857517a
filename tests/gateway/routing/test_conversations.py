"""Conversations without session keys."""

import weakref

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.conversations import MAX_RECENT, RECENT_S, ConversationHomes
from protocol.ids import BlockDigest
from tests.fakes.fleet import W1, W2, chain

SHARED = ("system", 8)


def _turn(
    memory: ConversationHomes, ticket: int, digests: tuple[BlockDigest, ...], key: str = "k"
) -> str:
    name = memory.recognise(key, None, digests, ticket)
    memory.record(name, digests, W1, 0.0)
    return name


def test_a_session_key_names_the_conversation_within_its_api_key() -> None:
    """The same session key of two API keys is two conversations."""
    memory = ConversationHomes()
    assert memory.recognise("a", "s", chain(SHARED), 1) != memory.recognise("b", "s", (), 2)
    assert memory.recognise("a", "s", (), 3) == memory.recognise("a", "s", chain(SHARED), 4)


def test_a_next_turn_is_recognised_by_its_prompt() -> None:
    """A prompt that continues an earlier one belongs to its conversation, over many turns."""
    memory = ConversationHomes()
    names = {_turn(memory, n, chain(SHARED, ("ann", n))) for n in range(1, 9)}
    others = {_turn(memory, 10 + n, chain(SHARED, ("bob", n))) for n in range(1, 9)}
    assert len(names) == len(others) == 1
    assert names != others


def test_equal_openings_are_different_conversations() -> None:
    """Sixteen agents that so far share every full block count as sixteen."""
    memory = ConversationHomes()
    assert len({_turn(memory, n, chain(SHARED)) for n in range(16)}) == 16


def test_another_api_key_never_continues_a_conversation() -> None:
    """A prompt with the same blocks under another API key is another conversation."""
    memory = ConversationHomes()
    first = _turn(memory, 1, chain(SHARED))
    assert _turn(memory, 2, chain(SHARED, ("more", 1)), key="other") != first


def test_sharing_counts_other_recent_conversations() -> None:
    """How many others share each stretch of the prompt; old and own ones do not count."""
    memory = ConversationHomes()
    own = _turn(memory, 1, chain(SHARED, ("ann", 4)))
    _turn(memory, 2, chain(SHARED, ("bob", 4)))
    _turn(memory, 3, chain(SHARED, ("ann", 2), ("cat", 1)))
    _turn(memory, 4, chain(("else", 9)))
    prompt = chain(SHARED, ("ann", 6))
    assert memory.sharing(own, prompt, 0.0) == [(8, 2), (10, 1)]
    assert memory.sharing("k/new", prompt, 0.0) == [(8, 3), (10, 2), (12, 1)]
    assert memory.sharing(own, prompt, RECENT_S + 1) == []


@given(st.integers(1, 200), st.integers(1, 70))
def test_a_next_turn_is_found_at_any_length(length: int, growth: int) -> None:
    """The end of the last prompt is found wherever it lies, and the longest one of several."""
    memory = ConversationHomes()
    first = _turn(memory, 1, chain(("ann", length)))
    assert memory.recognise("k", None, chain(("ann", length + growth)), 2) == first
    fork = _turn(memory, 3, chain(("ann", length), ("fork", growth)))
    assert memory.recognise("k", None, chain(("ann", length), ("fork", growth + 1)), 4) == fork
    assert memory.recognise("k", None, chain(("other", length + growth)), 5) != first


def test_memory_is_bounded_and_knows_the_last_home() -> None:
    """Only the newest chains are compared; the last worker of a conversation is known."""
    memory = ConversationHomes()
    for n in range(2 * MAX_RECENT):
        _turn(memory, n, chain(SHARED, (f"agent {n}", 2)))
    assert memory.sharing("new", chain(SHARED), 0.0) == [(8, MAX_RECENT)]
    memory.record("k/s", (), W2, 0.0)
    assert memory.homes.get("k/s") == W2
    assert memory.homes.get("k/unknown") is None


class _Prompt(list[BlockDigest]):
    """A chain whose life can be watched."""


def test_forgotten_prompts_are_freed_from_time_to_time() -> None:
    """A decision leaves the freeing to `sweep`; without it few are kept all the same."""
    memory = ConversationHomes()
    watched: list[weakref.ref[_Prompt]] = []
    for n in range(3 * MAX_RECENT):
        prompt = _Prompt(chain((str(n), 2)))
        watched.append(weakref.ref(prompt))
        memory.record(f"k/{n}", prompt, W1, 0.0)
    del prompt
    assert sum(each() is not None for each in watched) == 2 * MAX_RECENT
    memory.sweep()
    assert sum(each() is not None for each in watched) == MAX_RECENT


def test_what_is_shared_follows_every_change() -> None:
    """What conversations share follows every change: the same prompt is looked up again after
    others came, and after all are old.
    """
    memory, asked = ConversationHomes(), chain(SHARED)
    assert memory.sharing("k/a", asked, 0.0) == []
    memory.record("k/b", asked, W1, 0.0)
    assert memory.sharing("k/a", asked, 0.0) == [(8, 1)]
    assert memory.sharing("k/b", asked, 0.0) == []
    memory.record("k/c", chain(SHARED, ("c", 1)), W1, 9.0)
    assert memory.sharing("k/a", asked, 9.0) == [(8, 2)]
    assert memory.sharing("k/a", asked, RECENT_S + 1.0) == [(8, 1)]
    assert memory.sharing("k/a", asked, RECENT_S + 10.0) == []
    memory.record("k/d", asked, W1, RECENT_S + 10.0)
    assert memory.sharing("k/a", asked, 2 * RECENT_S) == [(8, 1)]
