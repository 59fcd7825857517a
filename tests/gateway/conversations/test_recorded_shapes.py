"""1,000 interleaved conversations in requests that real clients sent, and none of them is a loop.

The requests are those of tests/clients/shapes, which say how they were recorded. Each conversation
has ids and first words of its own; all else is the same in all conversations of a client.
"""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import pytest

from gateway.api import ChatRequest, parse_any_chat, parse_messages, parse_responses
from gateway.api.signatures import Signer
from gateway.conversations import (
    ConversationBook,
    KnownConversation,
    LoopFinder,
    TurnEnd,
    named_by,
)
from tests.clients.shapes import SHAPES, Shape, own, read

SIGNER: Final = Signer(b"k" * 32)
NUM_CONVERSATIONS: Final = 1000
REPEATS: Final = 5
CHILD: Final = "Do the part of the child now"
_ASKED: Final = re.compile(rb"Please do the check of [\w-]+ now|" + CHILD.encode())

FILES: Final = sorted(SHAPES.glob("*.json.xz"))
CHILDREN: Final = sorted((SHAPES / "children").glob("*.json.xz"))

Header = tuple[bytes, bytes]


class Recorded:
    """The requests of one client, as bytes to draw conversations from."""

    def __init__(self, path: Path, *, has_child: bool) -> None:
        self.client = path.name.partition(".")[0]
        self.has_child = has_child
        shapes = read(path)
        self._shapes = [(one, msgspec.json.encode(one.body)) for one in shapes]
        self._owners = [_is_child(one) for one in shapes]

    def __len__(self) -> int:
        return len(self._shapes)

    def draw(self, at: int, number: int) -> tuple[ChatRequest, tuple[Header, ...], bool]:
        """The request at `at` of conversation `number`; whether a subagent of it sent it."""
        shape, body = self._shapes[at]
        headers = tuple(
            (name.encode(), _own(value.encode(), number)) for name, value in shape.headers.items()
        )
        return _parsed(shape.path, _own(body, number)), headers, self._owners[at]


def _is_child(shape: Shape) -> bool:
    said = msgspec.json.encode(shape.body)
    return CHILD.encode() in said and b"Please do the check" not in said


def _own(text: bytes, number: int) -> bytes:
    return _ASKED.sub(lambda found: found[0] + b" in /src/%d" % number, own(text, number))


def _parsed(path: str, body: bytes) -> ChatRequest:
    if path.startswith("/v1/messages"):
        return parse_messages(body, SIGNER, None)
    if path.startswith("/v1/responses"):
        return parse_responses(body, SIGNER, None).request
    return parse_any_chat(body, SIGNER, None)


class Talk:
    """One conversation, by its next requests."""

    def __init__(self, recorded: Recorded, number: int) -> None:
        self.recorded = recorded
        self.number = number
        self.at = 0
        self.owners: dict[bool, set[int]] = {False: set(), True: set()}
        self.found: dict[bool, KnownConversation] = {}

    def next(self, book: ConversationBook, now: float) -> None:
        """Send the next request."""
        request, headers, is_child = self.recorded.draw(self.at, self.number)
        self.at += 1
        named = named_by(dict(headers), request)
        visit = book.enter(named, "key", self.recorded.client, request, now)
        assert visit is not None
        book.leave(visit, now, TurnEnd())
        self.owners[is_child].add(id(visit.conversation))
        self.found[is_child] = visit.conversation


def _talks(random_: random.Random) -> list[Talk]:
    recorded = [Recorded(path, has_child=False) for path in FILES]
    recorded += [Recorded(path, has_child=True) for path in CHILDREN]
    return [Talk(recorded[at % len(recorded)], at) for at in range(NUM_CONVERSATIONS)]


def _order(talks: Sequence[Talk], random_: random.Random) -> list[Talk]:
    """The order of requests: conversations with subagents go to the end, the others mostly for a
    few turns.
    """
    order = []
    for one in talks:
        whole = one.recorded.has_child or random_.random() < 0.02
        order += [one] * (len(one.recorded) if whole else random_.randint(1, 4))
    random_.shuffle(order)
    return order


def test_1000_interleaved_conversations_are_told_apart() -> None:
    """Each is one conversation and no other's; subagents are conversations of their own, below the
    agent where the client names it.
    """
    random_, book = random.Random(5), ConversationBook()
    talks = _talks(random_)
    for at, talk in enumerate(_order(talks, random_)):
        talk.next(book, float(at))
    owners = [found for talk in talks for found in talk.owners.values() if found]
    assert {len(found) for found in owners} == {1}
    assert len(set.union(*owners)) == len(owners)
    for talk in talks:
        if talk.recorded.client in {"codex", "opencode", "claude"} and talk.recorded.has_child:
            assert talk.found[True].parent == talk.found[False].name
            assert talk.found[False].children == 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_no_recorded_conversation_is_a_loop(path: Path) -> None:
    """21 calls of one tool, each of another note with the same words in it."""
    recorded, finder = Recorded(path, has_child=False), LoopFinder()
    for at in range(len(recorded)):
        request, _, _ = recorded.draw(at, 1)
        assert finder.find(request.messages, REPEATS) is None
