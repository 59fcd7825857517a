"""The edge: what the routes need of the rest of the gateway.

Owns that interface, which tests fill with scripted functions. Must not know how turns run.
"""

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import trio

from config import (
    Config,
    FallbackConfig,
    GatewayConfig,
    KeyConfig,
    ParamsConfig,
    ResponsesConfig,
    wildcard_of,
)
from gateway.api import (
    KEY_BYTES,
    LONG_BODY_BYTES,
    SMALL_BYTES,
    ChatRequest,
    LongTexts,
    PromptField,
    Rewrite,
    Signer,
    TurnEvent,
    check_counts,
    is_quickly_read,
    long_texts,
    model_not_found,
    unavailable,
)
from gateway.conversations import ConversationRow, PrefixRow
from gateway.dashboard import Dashboard
from gateway.responses import StoredResponses
from gateway.routing import ModelView, RoutePreview, WorkerView, with_refusals
from gateway.runtime import Accounts
from gateway.spending import RateLimits, SpendingFigures
from gateway.telemetry import AuditTrail, EventFeed, Listener, RequestTraces
from gateway.turn import Caller, Encoding, KnownText, PathRequest, PromptRoom, Respond
from gateway.upstream import ChatEvents, apply_params

T = TypeVar("T")
Emit = Callable[[TurnEvent], None]
RunTurn = Callable[[ChatRequest, Caller, Emit], Awaitable[None]]
TextOf = Callable[[str], Awaitable[KnownText]]
PassThrough = Callable[[PathRequest, Caller, Respond], Awaitable[None]]
RoomOf = Callable[[str, PromptField], PromptRoom | None]
Preview = Callable[[ChatRequest, Caller], Awaitable[RoutePreview]]


def as_events(run_turn: RunTurn) -> RunTurn:
    """`run_turn`, but a provider's answer is parsed into events instead of passed on as bytes."""

    async def run(request: ChatRequest, caller: Caller, emit: Emit) -> None:
        needs_objects = request.translated_from == "messages"
        await run_turn(request, caller, ChatEvents(emit, needs_objects=needs_objects).take)

    return run


async def no_text(name: str) -> KnownText:
    """The `TextOf` of a gateway without tokenizers."""
    raise unavailable(f"The tokenizer of {name} is unknown.", 1)


async def no_preview(request: ChatRequest, caller: Caller) -> RoutePreview:  # noqa: ARG001
    """The `Preview` of a gateway without workers."""
    raise unavailable(f"No worker serves {request.model} here.", 1)


def no_room(name: str, field: PromptField) -> None:
    """The `RoomOf` of a gateway without tokenizers."""


def no_conversations(name: str) -> list[ConversationRow]:  # noqa: ARG001
    """The `conversations` of a gateway without any."""
    return []


async def no_pass_through(request: PathRequest, caller: Caller, respond: Respond) -> None:  # noqa: ARG001
    """The `PassThrough` of a gateway without workers."""
    raise model_not_found(request.body.model)


@dataclass(frozen=True, slots=True)
class FleetGauges:
    """The gateway's figures at one moment. `unready_workers` have registered but cannot generate
    yet; `running` sequences have a place on a worker; `tasks` are those of the event loop.
    `counters` and `events` (counts by kind) only rise. `open_breakers` says for each provider
    whether it is now asked last or not at all. `decisions` counts placed sequences by the reason
    for their worker. `is_ledger_stuck`: what is spent cannot be written down now.
    """

    unready_workers: int = 0
    running: int = 0
    open_turns: int = 0
    detached_requests: int = 0
    tasks: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    open_breakers: Mapping[str, bool] = field(default_factory=dict)
    workers: tuple[WorkerView, ...] = ()
    decisions: Mapping[str, int] = field(default_factory=dict)
    index_blocks: int = 0
    index_bytes: int = 0
    is_ledger_stuck: bool = False


@dataclass(slots=True)
class EdgeSettings:
    """The configuration that a reload may change; only `take` writes it. `alias_params` are the
    rewriting rules of each alias. `rate_limits` is None if no limit is configured.
    """

    config: GatewayConfig
    keys: tuple[KeyConfig, ...] = ()
    alias_params: Mapping[str, ParamsConfig] = field(default_factory=dict)
    rate_limits: RateLimits | None = None

    @classmethod
    def of(cls, config: Config) -> "EdgeSettings":
        settings = cls(config.gateway)
        settings.take(config)
        return settings

    def take(self, config: Config) -> None:
        """Use `config` for requests that arrive from now on."""
        self.config, self.keys = config.gateway, config.keys
        self.alias_params = {
            alias: params for model in config.models for alias, params in model.alias_params.items()
        }
        limits = self.rate_limits or RateLimits()
        limits.follow(config.gateway, config.keys)
        self.rate_limits = limits if limits.is_any else None


@dataclass(frozen=True, slots=True)
class Edge:
    """The gateway as HTTP sees it.

    `run_turn` answers a chat, `pass_through` any other request. `draining` returns True once the
    gateway stops and takes no new turns. `refuses` tells whether limits of money keep all
    providers of a chain from answering. `process` is the index of one of several processes.
    `text_of` gives the tokenizer of a model by name or alias; `preview` says which worker a request
    would go to, `room_of` how long a prompt may be, where that is known. `listen` subscribes to
    events, `traces` holds recent requests, `audit` records acts of operators. `conversations` gives
    the rows of those of a name, or of all for an empty one; `prefixes` what breaks the prefixes of
    prompts. `signer` proves that reasoning came from this gateway. `stored` holds responses and
    conversations of the API. `draw` gives random bytes, `unix_time` seconds since 1970, `now`
    seconds on trio's clock. `encoding` has the threads for large bodies; `accounts` takes what is
    recorded of requests that have ended.
    """

    settings: EdgeSettings
    version: str
    run_turn: RunTurn
    models: Callable[[], tuple[ModelView, ...]]
    gauges: Callable[[], FleetGauges]
    draining: Callable[[], bool]
    spending: Callable[[], SpendingFigures] = SpendingFigures
    refuses: Callable[[tuple[FallbackConfig, ...]], bool] = lambda _: False
    process: str | None = None
    text_of: TextOf = no_text
    preview: Preview = no_preview
    room_of: RoomOf = no_room
    pass_through: PassThrough = no_pass_through
    listen: Callable[[], AbstractContextManager[Listener]] = field(
        default_factory=lambda: EventFeed().listen
    )
    dashboard: Dashboard | None = None
    traces: RequestTraces = field(default_factory=RequestTraces)
    conversations: Callable[[str], list[ConversationRow]] = no_conversations
    prefixes: Callable[[], tuple[PrefixRow, ...]] = tuple
    audit: AuditTrail = field(default_factory=lambda: AuditTrail(EventFeed(), None))
    signer: Signer = field(default_factory=lambda: Signer(os.urandom(KEY_BYTES)))
    stored: StoredResponses = field(
        default_factory=lambda: StoredResponses(ResponsesConfig(), None, time.time, lambda _: None)
    )
    draw: Callable[[int], bytes] = os.urandom
    unix_time: Callable[[], float] = time.time
    now: Callable[[], float] = trio.current_time
    encoding: Encoding = field(default_factory=Encoding)
    accounts: Accounts = field(default_factory=Accounts)

    @property
    def config(self) -> GatewayConfig:
        return self.settings.config

    @property
    def rewrite(self) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
        """The function `by_alias`; None if no alias has rewriting rules, so that parsers need not
        call it.
        """
        return self.by_alias if self.settings.alias_params else None

    async def read(
        self,
        caller: Caller,
        body: bytes,
        parse: Callable[[bytes, Rewrite | None], T],
        field: PromptField | None = None,
    ) -> T:
        """The result of `parse` for `body` and the rewriting rules of aliases, in a thread if that
        takes long. Raises `ApiError` 400 for too many values and for a prompt in `field` that is
        certainly too long (None: the body has no prompt), and the errors of `parse`.
        """
        if len(body) <= SMALL_BYTES or is_quickly_read(body):
            return parse(body, self.rewrite)
        if field is not None and len(body) > LONG_BODY_BYTES:
            await self._check_room(caller, body, field)
        models = self.models()
        rewrite = replace(self, models=lambda: models).rewrite

        def work() -> T:
            check_counts(body)
            return parse(body, rewrite)

        return await self.encoding.run(caller, len(body), work)

    async def _check_room(self, caller: Caller, body: bytes, field: PromptField) -> None:
        """Raise `ApiError` 400 if the body's texts prove that its prompt is too long."""

        def find() -> LongTexts | None:
            check_counts(body)
            return long_texts(body, field)

        found = await self.encoding.run(caller, len(body), find)
        if found is None or self._rules_of(found.model) is not None:
            return
        room = self.room_of(found.model, field)
        if room is not None:
            check = partial(room.check, found, field)
            await self.encoding.run(caller, len(body), check)

    def shown_models(self) -> tuple[ModelView, ...]:
        """The models as operators see them."""
        return with_refusals(self.models(), self.refuses)

    def by_alias(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The body of a request after the rewriting rules of the alias that it names."""
        if not self.settings.alias_params:
            return raw
        name = raw.get("model")
        params = self._rules_of(name) if isinstance(name, str) else None
        return raw if params is None else apply_params(raw, params)

    def public_name(self, name: str) -> str | None:
        """The configured name of the model with that name or alias; None if there is none."""
        found = model_named(self.models(), name)
        return None if found is None else found.name

    def _rules_of(self, name: str) -> ParamsConfig | None:
        params = self.settings.alias_params.get(name)
        if params is None and (wildcard := self._wildcard_of(name)) is not None:
            params = self.settings.alias_params.get(wildcard)
        return params

    def _wildcard_of(self, name: str) -> str | None:
        """The wildcard alias that matches `name`; None if a model has that very name or alias."""
        models = self.models()
        if any(name == model.name or name in model.aliases for model in models):
            return None
        return wildcard_of(name, [alias for model in models for alias in model.aliases])


def model_named(models: Sequence[ModelView], name: str) -> ModelView | None:
    """The model with that name or alias, else the one whose wildcard alias matches, else None."""
    for model in models:
        if name == model.name or name in model.aliases:
            return model
    wildcard = wildcard_of(name, [alias for model in models for alias in model.aliases])
    return next((model for model in models if wildcard in model.aliases), None)
