"""Requests find their conversations: by names, and by their prompts."""

import itertools
import random
import sys
from typing import Any

import pytest

from gateway.api import ChatRequest, Message, Usage
from gateway.api.request import ToolCall
from gateway.conversations import (
    ConversationBook,
    ConversationVisit,
    KnownConversation,
    PrefixDoctor,
    SentPrompt,
    TurnEnd,
    named_by,
)
from gateway.conversations.book import EXPIRE_S, MAX_CONVERSATIONS
from gateway.conversations.chains import ANCHORS
from protocol.tokens import pack_tokens

Header = tuple[bytes, bytes]


def chat(*said: str, system: str | None = "Be an agent.", **raw: Any) -> ChatRequest:
    """A prompt: user, assistant, user, ..."""
    roles = itertools.cycle(("user", "assistant"))
    messages = [] if system is None else [Message("system", system)]
    messages += [Message(role, text) for role, text in zip(roles, said, strict=False)]  # type: ignore[arg-type]
    return ChatRequest("alpha", tuple(messages), raw, session=raw.get("session_id"))


def enter(
    book: ConversationBook,
    request: ChatRequest,
    *headers: Header,
    key: str = "k",
    now: float = 0.0,
    status: int | None = 200,
) -> KnownConversation:
    """The conversation of a request, which ends at once unless `status` is None."""
    visit = book.enter(named_by(dict(headers), request), key, "agent", request, now)
    assert visit is not None
    if status is not None:
        leave(book, visit, now, status)
    return visit.conversation


def leave(book: ConversationBook, visit: ConversationVisit, now: float, status: int = 200) -> None:
    error = "" if status == 200 else "busy"
    end = TurnEnd(status=status, error=error, usage=Usage(100, 60, 10), cost=5, busy_s=1.0)
    book.leave(visit, now, end)


@pytest.mark.parametrize(
    ("headers", "raw", "name", "parent"),
    [
        (((b"x-session-id", b"s1"),), {}, "s1", ""),
        (((b"x-session-affinity", b"s2"), (b"x-session-id", b"s2")), {}, "s2", ""),
        (((b"x-claude-code-session-id", b"s3"),), {"session_id": "other"}, "s3", ""),
        (((b"x-correlation-id", b"c1"),), {}, "c1", ""),
        (((b"x-correlation-id", b"c1"),), {"session_id": "s4"}, "s4", ""),
        ((), {"session_params": {"id": "s5"}}, "s5", ""),
        ((), {"session_id": "user_1f_account_22_session_0a1b2c3d-4e5f"}, "0a1b2c3d-4e5f", ""),
        (((b"x-session-id", b"child"), (b"x-parent-session-id", b"top")), {}, "child", "top"),
        (((b"session-id", b"s6"), (b"x-openai-subagent", b"review")), {}, "s6/review", "s6"),
        (((b"session-id", b"c"),), {"metadata": {"parent_session_id": "p"}}, "c", "p"),
        ((), {"user": "ann"}, "", ""),
    ],
)
def test_what_a_client_says_names_the_conversation(
    headers: tuple[Header, ...], raw: dict[str, Any], name: str, parent: str
) -> None:
    named = named_by(dict(headers), chat("hello", **raw))
    assert (named.name, named.parent) == (name, parent)


def test_the_person_is_no_conversation() -> None:
    request = ChatRequest("alpha", (Message("user", "a"),), {"user": "ann"}, session="ann")
    assert named_by({}, request).name == ""


def test_a_next_turn_continues_the_conversation() -> None:
    book = ConversationBook()
    first = enter(book, chat("a"))
    assert enter(book, chat("a", "b", "c")) is first
    assert enter(book, chat("a", "b", "c", "d", "e")) is first
    assert enter(book, chat("a", "x", "c"), key="other") is not first
    assert first.turns == 3


def test_a_side_call_does_not_take_the_place_of_the_next_turn() -> None:
    book = ConversationBook()
    first = enter(book, chat("a"))
    assert enter(book, chat("a", "b", "Review what was said.")) is first
    assert enter(book, chat("a", "b", "c")) is first


def test_equal_beginnings_are_two_conversations_unless_one_failed() -> None:
    book = ConversationBook()
    first, second = enter(book, chat("hi")), enter(book, chat("hi"))
    assert first is not second
    assert {first.name, second.name} == {first.name, f"{first.name}-2"}
    found = {id(enter(book, chat("hi", f"hello {one}", "go"))) for one in range(2)}
    assert found == {id(first), id(second)}
    failed = enter(book, chat("yo"), status=503)
    assert enter(book, chat("yo")) is failed
    assert failed.errors == 1
    assert failed.last_error == "busy"


@pytest.mark.parametrize("num_turns", [1, 2, 5])
def test_a_changed_beginning_continues_it(num_turns: int) -> None:
    book = ConversationBook()
    said = [f"text {at}" for at in range(2 * num_turns + 1)]
    first = enter(book, chat(*said[:-2], system="It is 10:01."))
    assert enter(book, chat(*said, system="It is 10:02.")) is first


def test_a_summary_in_place_of_the_beginning_continues_it() -> None:
    book = ConversationBook()
    said = [f"text {at}" for at in range(21)]
    first = enter(book, chat(*said))
    assert enter(book, chat("Summary: it went well.", *said[9:], "b", "c")) is first


def test_threads_of_one_session_are_conversations_of_their_own() -> None:
    """codex's subagents, which name the session, their thread and their parent's."""
    book = ConversationBook()
    session = (b"session-id", b"top")
    top = enter(book, chat("a"), session, (b"thread-id", b"top"))
    kind, parent = (b"x-openai-subagent", b"collab_spawn"), (b"x-codex-parent-thread-id", b"top")
    low = [
        enter(book, chat(name.decode()), session, (b"thread-id", name), kind, parent)
        for name in (b"low", b"other")
    ]
    assert [one.name for one in (top, *low)] == ["top", "low", "other"]
    assert [one.parent for one in low] == ["top", "top"]
    assert top.children == 2


def test_a_correlation_id_of_each_request_is_no_name() -> None:
    book = ConversationBook()
    first = enter(book, chat("a"), (b"x-correlation-id", b"1"))
    assert enter(book, chat("a", "b", "c"), (b"x-correlation-id", b"2")) is first
    assert enter(book, chat("z"), (b"x-correlation-id", b"3")) is not first
    again = enter(book, chat("q"), (b"x-correlation-id", b"9"))
    assert enter(book, chat("other"), (b"x-correlation-id", b"9")) is again


def test_counts() -> None:
    book = ConversationBook()
    calls = (ToolCall("1", "ls", "{}"), ToolCall("2", "ls", "{}"))
    messages = (Message("user", "a"), Message("assistant", None, tool_calls=calls))
    results = (Message("tool", "x", tool_call_id="1"), Message("tool", "y", tool_call_id="2"))
    first = ChatRequest("alpha", messages[:1], {})
    visit = book.enter(named_by({}, first), "k", "agent", first, 10.0)
    assert visit is not None
    leave(book, visit, 12.0)
    second = ChatRequest("alpha", (*messages, *results), {})
    enter(book, second, now=20.0)
    (row,) = book.rows()
    assert (row.turns, row.tool_calls, row.prompt_tokens, row.cached_tokens) == (2, 2, 200, 120)
    assert (row.paused_s, row.longest_pause_s, row.busy_s, row.cost) == (8.0, 8.0, 2.0, 10)
    assert row.began_at == 10.0


def test_a_child_stands_with_its_parent() -> None:
    book = ConversationBook()
    enter(book, chat("a"), (b"x-session-id", b"top"))
    enter(book, chat("b"), (b"x-session-id", b"low"), (b"x-parent-session-id", b"top"))
    enter(book, chat("c"), (b"x-session-id", b"alone"))
    assert [one.name for one in book.rows("top")] == ["top", "low"]
    assert book.rows("top")[0].children == 1


def test_it_is_bounded_and_forgets_what_is_idle() -> None:
    book = ConversationBook()
    for number in range(MAX_CONVERSATIONS + 50):
        enter(book, chat(f"{number}"), now=float(number))
    assert len(book) == MAX_CONVERSATIONS
    assert len(book._chains._by_last) == MAX_CONVERSATIONS
    book.sweep(MAX_CONVERSATIONS + 50 + EXPIRE_S)
    assert len(book) == 0
    assert not book._chains._by_end
    assert not book._chains._by_anchor
    assert not book._chains._by_last


def test_a_conversation_takes_at_most_4_kb() -> None:
    """A conversation of any length takes at most 4 KB; strings and tables that refer to it
    included.
    """
    book = ConversationBook()
    said = [f"text {at}" for at in range(401)]
    for end in range(1, 401, 2):
        one = enter(book, chat(*said[:end]))
    one.loop, one.last_error = "x" * 200, "y" * 60
    assert one.ends is not None
    parts = {id(part): part for name in one.__struct_fields__ for part in [getattr(one, name)]}
    in_tables = 200 * (len(one.ends) + ANCHORS) + 500
    assert sys.getsizeof(one) + sum(map(sys.getsizeof, parts.values())) + in_tables < 4096


@pytest.mark.parametrize("is_named", [True, False])
def test_1000_interleaved_conversations_are_told_apart(is_named: bool) -> None:
    """1,000 interleaved conversations of five clients are told apart: they have one key, one system
    prompt and a few opening words.
    """
    random_, book = random.Random(3), ConversationBook()
    talks = [_Talk(number, random_, is_named=is_named) for number in range(1000)]
    found: dict[int, set[int]] = {}
    order = [talk for talk in talks for _ in range(random_.randint(1, 5))]
    random_.shuffle(order)
    for talk in order:
        request, headers = talk.next()
        one = enter(book, request, *headers)
        found.setdefault(talk.number, set()).add(id(one))
    assert all(len(owners) == 1 for owners in found.values())
    assert len({owner for owners in found.values() for owner in owners}) == len(found)


class _Talk:
    def __init__(self, number: int, random_: random.Random, *, is_named: bool) -> None:
        self.number = number
        self._is_named = is_named
        self._random = random_
        self._said = [random_.choice(("Fix it.", "Write a test.", f"Task {number}."))]
        self._said[0] += f" In folder {number}."

    def next(self) -> tuple[ChatRequest, tuple[Header, ...]]:
        request = chat(*self._said)
        self._said += [f"answer {self._random.getrandbits(60)}", "Go on."]
        names = (b"x-session-id", b"session-id", b"x-session-affinity", b"x-correlation-id")
        name = names[self.number % 4], b"s%d" % self.number
        return request, ((name,) if self._is_named else ())


class CountedKey(str):
    """A key that counts how often a table looks it up."""

    __slots__ = ()
    num_hashed = 0

    def __hash__(self) -> int:
        CountedKey.num_hashed += 1
        return super().__hash__()


def lookups(book: ConversationBook, request: ChatRequest, status: int = 200) -> int:
    """How often one request looks its key up."""
    before = CountedKey.num_hashed
    enter(book, request, key=CountedKey("k"), status=status)
    return CountedKey.num_hashed - before


def test_a_prompt_that_thousands_send_is_named_as_fast_as_the_first() -> None:
    """Each is a conversation of its own, whose number is known without trying those before it; also
    once the first ones are forgotten.
    """
    book, same = ConversationBook(), chat("What is the time?")
    second = [lookups(book, same) for _ in range(3)][-1]
    assert max(lookups(book, same) for _ in range(MAX_CONVERSATIONS + 50)) <= second + 8
    names = [one.name for one in book.all()]
    assert len(set(names)) == MAX_CONVERSATIONS
    assert {name.partition("-")[0] for name in names} == {names[0].partition("-")[0]}


def test_a_number_is_given_again_once_all_of_the_name_are_forgotten() -> None:
    """A number is given again only once all of the name are forgotten: the usage of one would be
    taken for another's.
    """
    book, same = ConversationBook(), chat("Hello")
    first, second = enter(book, same, now=0.0), enter(book, same, now=EXPIRE_S / 2)
    assert second.name == f"{first.name}-2"
    book.sweep(EXPIRE_S)
    assert enter(book, same, now=EXPIRE_S).name == f"{first.name}-3"
    book.sweep(3 * EXPIRE_S)
    assert enter(book, same, now=3 * EXPIRE_S).name == first.name


def test_a_name_that_a_client_gave_is_passed_over() -> None:
    """A made-up name that a client has used is passed over; its number counts as given."""
    book, same = ConversationBook(), chat("Hello")
    first = enter(book, same)
    enter(book, chat("Mine", session_id=f"{first.name}-2"))
    assert enter(book, same).name == f"{first.name}-3"


def test_a_retry_among_thousands_of_the_same_prompt_is_found_in_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The book finds the conversation without an answer by its prompt, and compares no other."""
    book, same = ConversationBook(), chat("Hello")
    for _ in range(1000):
        enter(book, same)
    failed = enter(book, same, status=503)
    asked: list[KnownConversation] = []
    slot = KnownConversation.may_repeat

    class Asked:
        def __get__(self, one: KnownConversation, kind: type) -> bool:
            asked.append(one)
            return bool(slot.__get__(one, kind))

        def __set__(self, one: KnownConversation, value: bool) -> None:
            slot.__set__(one, value)

    monkeypatch.setattr(KnownConversation, "may_repeat", Asked())
    assert enter(book, same) is failed
    assert enter(book, same) is not failed
    assert len(asked) < 20


def test_the_prompts_of_a_conversation_are_forgotten_with_it() -> None:
    """The prompts of a conversation are forgotten with it. They stayed until the memory for prompts
    reached its bound.
    """
    doctor = PrefixDoctor()
    book = ConversationBook(doctor.forget)
    for number in range(MAX_CONVERSATIONS + 50):
        request = chat(f"question {number}")
        visit = book.enter(named_by({}, request), "k", "agent", request, float(number))
        assert visit is not None
        prompt = SentPrompt(pack_tokens(range(8)), visit.hashes, (), 0, request.model)
        doctor.note(visit.conversation, prompt, request.messages, str)
        leave(book, visit, float(number))
        assert not visit.conversation.is_forgotten
    assert doctor.num_bytes == MAX_CONVERSATIONS * prompt.num_bytes
    book.sweep(1e9)
    assert visit.conversation.is_forgotten
    assert len(book) == doctor.num_bytes == 0
