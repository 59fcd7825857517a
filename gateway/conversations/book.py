"""The conversations of one gateway process.

Owns the table of conversations, its bounds, and which requests run in which one. Time is an
argument. Must not know HTTP, tokens of prompts or limits.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from gateway.api import ChatRequest, Usage
from gateway.conversations.chains import Chain, PromptChains, said
from gateway.conversations.conversation import ConversationRow, KnownConversation, row_of
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


@dataclass(slots=True, eq=False)
class ConversationVisit:
    """A request in its conversation. `hashes` has one for each message that is compared. `request`
    is kept while the request runs.
    """

    conversation: KnownConversation
    chain: Chain | None
    scope: int
    hashes: "array[int]"
    request: ChatRequest | None = None


@dataclass(slots=True)
class _Namesakes:
    """The conversations that begin with the same prompt: how many there are, and the last number
    that one got. Numbers are not given again while one is left, so a name is found in one step.
    """

    num_open: int = 0
    last: int = 0


class ConversationBook:
    """All conversations, the last used one last."""

    def __init__(self) -> None:
        self._table: OrderedDict[tuple[str, str], KnownConversation] = OrderedDict()
        self._chain_of: dict[tuple[str, str], tuple[Chain, int]] = {}
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
        # `hashes_of`, inlined: this is on the way of every request.
        hashes = array("q", map(hash, map(said, messages[:MAX_MESSAGES])))
        scope, chain = 0, None
        conversation = self._table.get((key, name)) if name else None
        if conversation is None and (not name or named.is_weak):
            scope = hash((key, request.model))
            chain = self._chains.find(scope, hashes)
            if chain is not None:
                conversation = chain.owner
        if conversation is None:
            conversation = self._new(named, key, client, request, now)
        self._table.move_to_end((key, conversation.name))
        entry = key, conversation.name
        if entry in self._chain_of:
            chain, scope = self._chain_of[entry]
        elif conversation.source in _UNSURE and messages:
            scope = scope or hash((key, request.model))
            chain = Chain(conversation)
            self._chain_of[entry] = chain, scope
        if chain is not None:
            self._chains.note(chain, scope, hashes)
        conversation.begin(now, request.model, sum([one.role == "tool" for one in messages]))
        return ConversationVisit(conversation, chain, scope, hashes, request)

    def leave(
        self,
        visit: ConversationVisit,
        now: float,
        *,
        status: int,
        error: str,
        usage: Usage | None,
        is_cloud: bool,
        cost: int,
        busy_s: float,
    ) -> None:
        """A request has ended; see `KnownConversation.end`."""
        visit.request = None
        if visit.chain is not None:
            self._chains.set_repeat(visit.chain, may_repeat=status != 200)
        visit.conversation.end(
            now,
            status=status,
            error=error,
            usage=usage,
            is_cloud=is_cloud,
            cost=cost,
            busy_s=busy_s,
        )

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

    def rows(self, name: str = "", most: int = MAX_CONVERSATIONS) -> list[ConversationRow]:
        """Rows of the conversations that were used last, or of those that `find` gives."""
        found = self.find(name) if name else self.all()
        return [row_of(one) for one, _ in zip(found, range(most), strict=False)]

    def _new(
        self, named: ClientNames, key: str, client: str, request: ChatRequest, now: float
    ) -> KnownConversation:
        name = named.name or self._name_of(key, request)
        if len(self._table) >= MAX_CONVERSATIONS:
            self._forget(next(iter(self._table.values())))
        parent = self._table.get((key, named.parent))
        if parent is not None:
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
        )
        self._table[key, name] = conversation
        return conversation

    def _name_of(self, key: str, request: ChatRequest) -> str:
        """A name from the beginning of the prompt, which all gateways give to it. Where others have
        it, it gets a number.
        """
        said = [one.content or "" for one in request.messages if one.role == "user"][:1]
        first = "\0".join([key, request.model, *said]).encode("utf-8", "surrogatepass")
        name = UNNAMED + blake2b(first, digest_size=6).hexdigest()
        namesakes = self._namesakes.setdefault((key, name), _Namesakes())
        namesakes.num_open += 1
        free = name if namesakes.last == 0 else f"{name}-{namesakes.last + 1}"
        namesakes.last += 1
        while (key, free) in self._table:  # a client has named its own so
            namesakes.last += 1
            free = f"{name}-{namesakes.last}"
        return free

    def _forget(self, one: KnownConversation) -> None:
        entry = one.key, one.name
        del self._table[entry]
        first = one.key, one.name.partition("-")[0]
        if one.source == "prompt" and (namesakes := self._namesakes.get(first)) is not None:
            namesakes.num_open -= 1
            if not namesakes.num_open:
                del self._namesakes[first]
        if (kept := self._chain_of.pop(entry, None)) is not None:
            self._chains.forget(*kept)
