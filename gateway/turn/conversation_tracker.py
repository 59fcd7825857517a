"""The conversation of a request: entered before its turn, and left at its end.

Owns the calls of `gateway.conversations` on the way of a request, and what is done about loops:
events, a header, a line in the prompt, a wait, another model, or an error. Must not know HTTP or
tokens.
"""

import time
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Final

import msgspec

from config import Config, ConversationLimitsConfig, LoopsConfig
from gateway.api import ApiError, ChatRequest, Message, Usage
from gateway.conversations import (
    MAX_CONVERSATIONS,
    ClientNames,
    ConversationBook,
    ConversationRow,
    ConversationVisit,
    KnownConversation,
    Loop,
    LoopFinder,
    PrefixDoctor,
    PrefixRow,
    Repair,
    ReturnModel,
    SentPrompt,
    TurnEnd,
    hint_of,
    named_by,
    tools_of,
)
from gateway.prompt import INSTRUCTIONS, ModelText, decode_raw
from gateway.runtime import Accounts
from gateway.spending import day_of
from gateway.store import UseName, UseSums
from gateway.telemetry import FleetEvent, Limited, LoopFound, RequestTrace
from gateway.turn.caller import Caller
from protocol.ids import WorkerId
from protocol.messages import Retain

SWEEP_S: Final = 60.0
MAX_WORDS: Final = 200
CLOUD: Final = "cloud:"
"""The prefix of `RequestTrace.served_by` for a provider."""
NO_USAGE: Final = Usage(0, 0, 0)
_HINT: Final = (
    "\n\n[Note of the gateway: the last {repeats} calls of {tools} were the same and brought "
    "nothing new. Do not repeat them: do something else, or say what is missing.]"
)


def _forget(_name: UseName, _sums: UseSums) -> None:
    """Do nothing: without a ledger no usage is recorded."""


def _tell_nobody(_worker_id: WorkerId, _message: Retain) -> None:
    """Do nothing: without a link no worker keeps prefixes."""


class ConversationTracker:
    """`publish` takes events, `record_use` takes usage. `accounts` takes what needs not be known
    while a request begins, `retain` what is expected of a conversation, for the worker that has its
    prefix.
    """

    def __init__(
        self,
        config: Config,
        publish: Callable[[FleetEvent], None],
        record_use: Callable[[UseName, UseSums], None] = _forget,
    ) -> None:
        self._record_use = record_use
        self.accounts = Accounts()
        self._publish = publish
        self._finder = LoopFinder()
        self._doctor = PrefixDoctor()
        self._returns = ReturnModel()
        self.book = ConversationBook(self._forgotten)
        self._visits: dict[int, ConversationVisit | None] = {}
        """The visit of each request by its number; None until its conversation is found."""
        self.retain: Callable[[WorkerId, Retain], None] = _tell_nobody
        self._sweeps_at = 0.0
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> None:
        """Apply `config` from now on."""
        own, keys = config.limits.conversation, config.keys
        self._limit = own if own.any else None
        self._limits = {key.name: _merged(own, key.conversation) for key in keys}
        self._repairs = [Repair(table) for table in config.repairs if table.on]
        self._loops = config.loops
        self._first = config.loops.first

    def enter(self, request: ChatRequest, caller: Caller) -> ChatRequest:
        """The request begins; returns what is asked in its place. Raises `ApiError` for a loop that
        the configuration ends.
        """
        trace, now = caller.trace, time.time()
        if trace.number in self._visits:
            return request  # a further prompt of the same request
        named = named_by(caller.sent, request)
        if self._repairs:
            request = self._mended(request, trace.client)
        if trace.number:
            self._visits[trace.number] = None
        limits = self._limits.get(caller.key, self._limit)
        loop, is_free = None, False
        if self._first is not None and len(request.messages) >= 2 * self._first:
            loop = self._finder.find(request.messages, self._first)
            is_free = loop is None
        find = partial(self._find, named, request, caller, now, is_free=is_free)
        if limits is None and loop is None:
            self.accounts.begin(find)
            return request
        self.accounts.write()
        conversation = find()
        if conversation is None:
            return request
        if limits is not None:
            trace.turn.limited = Limited(caller.key, trace.conversation, limits)
        return request if loop is None else self._in_loop(conversation, request, loop, trace)

    def _find(
        self,
        named: ClientNames,
        request: ChatRequest,
        caller: Caller,
        now: float,
        *,
        is_free: bool,
    ) -> KnownConversation | None:
        """The conversation of a request that began at `now`; None for one that belongs to none.
        `is_free`: a loop was looked for, and there is none.
        """
        trace = caller.trace
        visit = self.book.enter(named, caller.key, trace.client, request, now)
        if visit is None:
            return None
        conversation = visit.conversation
        trace.conversation = conversation.name
        if is_free:
            conversation.loop, conversation.loop_repeats = "", 0
        if trace.number:
            self._visits[trace.number] = visit
        else:  # prompts that are scored before an answer have a trace that never ends
            self.book.leave(visit, now, TurnEnd())
        return conversation

    def leave(self, trace: RequestTrace) -> None:
        """The request has ended. It must not raise: it is called for each request."""
        visit = self._visits.pop(trace.number, None)
        if visit is None:
            return
        self._examine(visit, trace)
        now = time.time()
        self._expect(visit, trace, now)
        ended_at = trace.received_at if trace.ended_at is None else trace.ended_at
        is_cloud = trace.served_by.startswith(CLOUD)
        end = TurnEnd(
            status=trace.status,
            error=trace.error,
            usage=trace.usage,
            is_cloud=is_cloud,
            cost=trace.turn.cost,
            busy_s=ended_at - trace.received_at,
        )
        self.book.leave(visit, now, end)
        if trace.usage is not None or trace.turn.cost:
            provider = trace.served_by.removeprefix(CLOUD) if is_cloud else ""
            self._record(visit.conversation.name, provider, trace, now)
        if now >= self._sweeps_at:
            self._sweeps_at = now + SWEEP_S
            self.book.sweep(now)
            self._returns.sweep(self.book.all(), now)

    def rows(self, name: str = "", most: int = MAX_CONVERSATIONS) -> list[ConversationRow]:
        """See `ConversationBook.rows`."""
        self.accounts.write()
        return self.book.rows(name, most)

    def prefixes(self) -> tuple[PrefixRow, ...]:
        """What breaks the prefixes of prompts, by client."""
        self.accounts.write()
        return self._doctor.rows()

    def _forgotten(self, conversation: KnownConversation) -> None:
        """The book has dropped `conversation`."""
        self._doctor.forget(conversation)
        self._returns.forget(conversation)

    def _mended(self, request: ChatRequest, client: str) -> ChatRequest:
        for repair in self._repairs:
            if repair.is_for(client):
                request = repair.mended(request)
        return request

    def _expect(self, visit: ConversationVisit, trace: RequestTrace, now: float) -> None:
        """Learn from the pause before this request, and tell the worker when the next one is
        expected.
        """
        conversation = visit.conversation
        self._returns.returned(conversation, trace.unix_time)
        answered, request = trace.turn.answered, visit.request
        if answered is None or request is None:
            return
        chance, within_s = self._returns.ended(
            conversation,
            now,
            tool=answered.tool,
            key=conversation.key,
            client=trace.client,
            hint=hint_of(request.raw),
        )
        if conversation.is_forgotten:  # while this request ran
            self._returns.forget(conversation)
        if not conversation.digest:
            named = "\0".join(conversation.owner).encode("utf-8", "surrogatepass")
            conversation.digest = blake2b(named, digest_size=16).digest()
        self.retain(
            answered.worker_id,
            Retain(answered.request_id, answered.attempt, conversation.digest, chance, within_s),
        )

    def _record(self, name: str, provider: str, trace: RequestTrace, now: float) -> None:
        """The usage of an ended request, for `herma usage --by conversation`."""
        usage = trace.usage or NO_USAGE
        self._record_use(
            (day_of(now), trace.key, trace.model, provider, name),
            (1, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, trace.turn.cost),
        )

    def _examine(self, visit: ConversationVisit, trace: RequestTrace) -> None:
        """Look for what broke the prefix of this prompt, if it was one of tokens."""
        turn, request = trace.turn, visit.request
        text = turn.text
        if request is None or not isinstance(text, ModelText) or not request.messages:
            return
        num_system = 0
        for one in request.messages[:2]:
            num_system += one.role in INSTRUCTIONS
        tools = tools_of(request.prompt_tools) if request.tools else ()
        prompt = SentPrompt(turn.prompt, visit.hashes, tools, num_system, request.model)
        conversation = visit.conversation
        if conversation.is_forgotten:
            return
        finding = self._doctor.note(
            conversation, prompt, request.messages, partial(decode_raw, text)
        )
        self._doctor.make_room(self.book.oldest_first)
        if finding is not None:
            lost_s = _seconds_of(trace, finding.lost_tokens)
            conversation.breaks += 1
            conversation.lost_tokens += finding.lost_tokens
            conversation.lost_s += lost_s
            self._doctor.count(trace.client, finding, lost_s)

    def _in_loop(
        self,
        conversation: KnownConversation,
        request: ChatRequest,
        loop: Loop,
        trace: RequestTrace,
    ) -> ChatRequest:
        """The request that replaces a request in a loop."""
        loops = self._loops
        is_news = conversation.loop_repeats < loops.alert <= loop.repeats
        if not conversation.loop:
            conversation.loops += 1
        conversation.loop, conversation.loop_repeats = loop.words, loop.repeats
        if loops.alert and is_news:
            self._publish(_found(conversation, loop))
        if _is_due(loops.header, loop):
            trace.notice = loop.words[:MAX_WORDS]
        if _is_due(loops.end, loop):
            raise loop_stopped(loop)
        if _is_due(loops.slow, loop):
            trace.turn.hold_s = loops.slow_s
        return _changed(request, loop, loops)


def _merged(
    own: ConversationLimitsConfig, of_key: ConversationLimitsConfig
) -> ConversationLimitsConfig | None:
    """The limits of a key's conversations, one by one; None if there is none."""
    values = msgspec.structs.asdict(of_key)
    given = {name: value for name, value in values.items() if value is not None}
    merged = msgspec.structs.replace(own, **given)
    return merged if merged.any else None


def _seconds_of(trace: RequestTrace, tokens: int) -> float:
    """The share of the time to the first token that `tokens` of the prompt took."""
    turn = trace.turn
    attempt = turn.attempts[-1] if turn.attempts else None
    if attempt is None or attempt.first_at is None:
        return 0.0
    computed = max(1, turn.prompt_tokens - attempt.cached_tokens)
    return max(0.0, attempt.first_at - attempt.began_at) * min(1.0, tokens / computed)


def loop_stopped(loop: Loop) -> ApiError:
    """422: clients show it and do not ask again by themselves."""
    text = (
        f"This conversation repeats itself, so it is stopped: {loop.words[:MAX_WORDS]}. Give it "
        "another instruction, or begin a new conversation."
    )
    return ApiError(422, text, code="conversation_loop", error_type="conversation_loop")


def _found(conversation: KnownConversation, loop: Loop) -> LoopFound:
    return LoopFound(
        name=_printable(conversation.name),
        key=conversation.key,
        model=conversation.model,
        tools=tuple(dict.fromkeys(_printable(one) for one in loop.tools)),
        repeats=loop.repeats,
        is_error=loop.is_error,
    )


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text[:80])


def _is_due(after: int, loop: Loop) -> bool:
    return 0 < after <= loop.repeats


def _changed(request: ChatRequest, loop: Loop, loops: LoopsConfig) -> ChatRequest:
    """`request` with a line for the model, or for another model."""
    if _is_due(loops.hint, loop):
        request = with_line(
            request,
            _HINT.format(repeats=loop.repeats, tools=", ".join(dict.fromkeys(loop.tools))),
        )
    if _is_due(loops.model, loop) and loops.other_model is not None:
        raw = {**request.raw, "model": loops.other_model}
        request = msgspec.structs.replace(request, model=loops.other_model, raw=raw)
    return request


def with_line(request: ChatRequest, line: str) -> ChatRequest:
    """`request` with `line` behind its last message, so that no earlier token changes."""
    *before, last = request.messages
    changed = msgspec.structs.replace(last, content=(last.content or "") + line)
    messages: tuple[Message, ...] = (*before, changed)
    raw = request.raw
    sent = raw.get("messages")
    if isinstance(sent, list) and sent and isinstance(sent[-1], dict):
        content = sent[-1].get("content")
        if isinstance(content, list):
            given: object = [*content, {"type": "text", "text": line.strip()}]
        else:
            given = f"{content or ''}{line}"
        raw = {**raw, "messages": [*sent[:-1], {**sent[-1], "content": given}]}
    return msgspec.structs.replace(request, messages=messages, raw=raw)
