"""The conversations of one gateway process.

Owns the table of conversations, its bounds, and which requests run in which one. Time is an
argument. Must not know HTTP, tokens of prompts or limits.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec
import xxhash

from gateway.api import ChatRequest
from gateway.conversations.chains import PromptChains, ends_of, role_of, said
from gateway.conversations.conversation import (
    OK,
    ConversationRow,
    KnownConversation,
    TurnEnd,
    row_of,
)
from gateway.conversations.names import WEAK_SOURCES, ClientNames

MAX_CONVERSATIONS: Final = 4096
EXPIRE_S: Final = 6 * 3600.0
"""A conversation that was idle for so long is forgotten; its usage stays in the ledger."""
MAX_MESSAGES: Final = 2048
"""Messages from the beginning of a prompt that are compared. The largest body that is admitted has
9,000, whose hashes and chains take 20 ms of the event loop.
"""
_UNSURE: Final = frozenset({"prompt", *WEAK_SOURCES})
UNNAMED: Final = "~"
"""The first character of names that come from a prompt and not from the client."""
NAME_DIGITS: Final = 12
"""Hexadecimal digits of such a name."""


class ConversationVisit(msgspec.Struct, eq=False):
    """A request in its conversation. `hashes` has one for each message that is compared. `request`
    is kept while the request runs.
    """

    conversation: KnownConversation
    hashes: "array[int]"
    request: ChatRequest | None = None


class _Namesakes(msgspec.Struct, gc=False):
    """The conversations that begin with the same prompt: how many there are, and the last number
    that one got. A number is not used again while a conversation with this name is left, so a free
    name is found in one step.
    """

    num_open: int = 0
    last: int = 0


class ConversationBook:
    """All conversations, the last used one last. `forgotten` takes each that is dropped, also while
    a request of it runs.
    """

    def __init__(self, forgotten: Callable[[KnownConversation], object] = lambda _: None) -> None:
        self._forgotten = forgotten
        self._table: OrderedDict[tuple[str, str], KnownConversation] = OrderedDict()
        self._chains = PromptChains()
        self._namesakes: dict[tuple[str, str], _Namesakes] = {}

    def __len__(self) -> int:
        return len(self._table)

    def enter(
        self, named: ClientNames, key: str, client: str, request: ChatRequest, now: float
    ) -> ConversationVisit | None:
        """A request begins. None for a raw prompt without a name, which belongs to none."""
        messages, name = request.messages, named.name
        if not name and not messages:
            return None
        hashes = array("q", map(hash, map(said, messages[:MAX_MESSAGES])))
        scope = hash((key, request.model))
        ends: list[int] | None = None
        conversation = self._table.get((key, name)) if name else None
        if conversation is None and (not name or named.is_weak):
            conversation, ends = self._chains.find(hashes, scope)
        num_results = tuple(map(role_of, messages)).count("tool")
        if conversation is None:
            conversation = self._new(named, key, client, request, now, num_results)
        else:
            self._table.move_to_end(conversation.owner)
            conversation.begin(now, request.model, num_results)
        if conversation.ends is None and conversation.source in _UNSURE and messages:
            conversation.scope, conversation.ends = scope, []
        if conversation.ends is not None:
            if ends is None or conversation.scope != scope:  # begun with another model
                ends = ends_of(hashes, conversation.scope)
            self._chains.note(conversation, hashes, ends)
        return ConversationVisit(conversation, hashes, request)

    def leave(self, visit: ConversationVisit, now: float, end: TurnEnd) -> None:
        """A request has ended."""
        visit.request = None
        conversation, may_repeat = visit.conversation, end.status != OK
        if conversation.ends is not None and conversation.may_repeat is not may_repeat:
            self._chains.set_repeat(conversation, may_repeat=may_repeat)
        conversation.end(now, end)

    def sweep(self, now: float) -> None:
        """Forget conversations that are idle for `EXPIRE_S`."""
        while self._table:
            one = next(iter(self._table.values()))
            if one.num_open or now - one.seen_at < EXPIRE_S:
                return
            self._forget(one)

    def find(self, name: str) -> Iterator[KnownConversation]:
        """The conversations with that name, of any key, then those that they began."""
        yield from (one for one in self._table.values() if one.name == name)
        yield from (one for one in self._table.values() if one.parent == name)

    def all(self) -> Iterator[KnownConversation]:
        """All conversations, the last used one first."""
        return reversed(self._table.values())

    def oldest_first(self) -> Iterable[KnownConversation]:
        """All conversations, the last used one last."""
        return self._table.values()

    def rows(self, name: str = "", most: int = MAX_CONVERSATIONS) -> list[ConversationRow]:
        """Rows of the conversations that were used last, or of those that `find` gives."""
        found = self.find(name) if name else self.all()
        return [row_of(one) for one, _ in zip(found, range(most), strict=False)]

    def _new(
        self,
        named: ClientNames,
        key: str,
        client: str,
        request: ChatRequest,
        now: float,
        num_results: int,
    ) -> KnownConversation:
        """A conversation whose first turn begins."""
        name = named.name or self._name_of(key, request)
        if len(self._table) >= MAX_CONVERSATIONS:
            self._forget(next(iter(self._table.values())))
        if named.parent and (parent := self._table.get((key, named.parent))) is not None:
            parent.children += 1
        conversation = KnownConversation(
            name=name,
            key=key,
            client=client,
            model=request.model,
            source=named.source or "prompt",
            parent=named.parent,
            began_at=now,
            seen_at=now,
            owner=(key, name),
            num_open=1,
            turns=1,
            tool_calls=num_results,
            calls_shown=num_results,
        )
        self._table[conversation.owner] = conversation
        return conversation

    def _name_of(self, key: str, request: ChatRequest) -> str:
        """A name that is made of the beginning of the prompt, so that all gateways give the prompt
        the same name. If other conversations have that name, a number is added.
        """
        said = ""
        for one in request.messages:
            if one.role == "user":
                said = one.content or ""
                break
        first = f"{key}\0{request.model}\0{said}".encode("utf-8", "surrogatepass")
        name = UNNAMED + xxhash.xxh3_64_hexdigest(first)[:NAME_DIGITS]
        namesakes = self._namesakes.get((key, name))
        if namesakes is None:
            namesakes = self._namesakes[key, name] = _Namesakes()
        namesakes.num_open += 1
        namesakes.last += 1
        free = name if namesakes.last == 1 else f"{name}-{namesakes.last}"
        while (key, free) in self._table:  # a client has given its conversation that name
            namesakes.last += 1
            free = f"{name}-{namesakes.last}"
        return free

    def _forget(self, one: KnownConversation) -> None:
        del self._table[one.owner]
        one.is_forgotten = True
        self._forgotten(one)
        if one.source == "prompt":
            first = one.key, one.name.partition("-")[0]
            namesakes = self._namesakes[first]
            namesakes.num_open -= 1
            if not namesakes.num_open:
                del self._namesakes[first]
        self._chains.forget(one)
