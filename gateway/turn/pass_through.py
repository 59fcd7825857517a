"""Pass-through: a request that is not a chat goes as it is to an engine or a provider.

Owns the choice of the server. Once the response has begun, no other server is tried. Must not know
what the path means, nor HTTP servers.
"""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

import msgspec

from config import FallbackConfig
from gateway.api import (
    ChatRequest,
    NamedBody,
    Started,
    Usage,
    count_of,
    model_not_found,
    session_of,
)
from gateway.routing import Lease, ModelView, UseProvider
from gateway.spending import Bill
from gateway.turn.caller import Caller
from gateway.turn.fallback_chain import ask_chain, settle_failure
from gateway.turn.relay_job import other_job
from gateway.turn.relay_run import RelayRun, no_such_path
from gateway.turn.services import Services
from gateway.upstream import (
    AnswerFiltered,
    Header,
    Provider,
    ProviderAnswer,
    ProviderRequest,
    ProviderUnavailable,
    WholeBody,
    apply_params,
    forwarded_to_provider,
)
from protocol.paths import is_plain_path
from protocol.transport import HttpResponse

_JSON: Final = (b"content-type", b"application/json")
_REFUSED: Final = 400
"""From this status on a provider has refused the request, and charges nothing."""

Respond = Callable[[HttpResponse, Started, Callable[[Usage], None]], Awaitable[None]]
"""Passes a response of the server in `Started` on to the client; calls back with its usage."""


class PathRequest(msgspec.Struct, frozen=True):
    """`path` is relative to the API's root, such as `/embeddings`. Raises `ValueError` for one that
    is not plain.
    """

    path: str
    body: NamedBody

    def __post_init__(self) -> None:
        if not is_plain_path(self.path):
            raise ValueError(f"the path {self.path!r} could leave the API's root")


async def pass_through(
    services: Services, request: PathRequest, caller: Caller, respond: Respond
) -> None:
    """Answer the request by a text-level engine or a provider. Raises `ApiError`; after `respond`
    was called it is `connection_lost`.
    """
    counters, task = services.counters, services.open_turns.open()
    counters.turns_started += 1
    caller.trace.turn.num_open += 1

    def end(_kind: object, error: BaseException | None, _trace: object) -> None:
        counters.end_turn(error)
        services.open_turns.close(task)
        caller.trace.turn.num_open -= 1
        services.traces.end_turn(caller.trace.turn)

    with ExitStack() as turn:
        turn.push(end)
        await _PassThrough(services, request, caller, respond).run()


class _PassThrough:
    def __init__(
        self, services: Services, request: PathRequest, caller: Caller, respond: Respond
    ) -> None:
        self._services = services
        self._request = request
        self._caller = caller
        self._respond = respond
        self._headers = tuple(forwarded_to_provider(caller.headers))
        self._filtered: tuple[Started, ProviderAnswer] | None = None
        """The answer that a server's filter ended, and the server: for the client, if no other
        server answers.
        """

    async def run(self) -> None:
        """Ask a text-level engine, else the providers."""
        view = self._view()
        route: UseProvider | None
        if view.block_size is not None and not view.relays:
            route = self._instead_of_tokens(view)
        else:
            route = await self._by_engine(view)
        if route is None:
            return
        with self._services.open_turns.interruptible():
            error = await ask_chain(
                self._services,
                self._as_chat(),
                route,
                self._by_provider,
                caller=self._caller,
                model=view.name,
                path=self._request.path,
            )
        if error is not None and self._filtered is None:
            raise error
        if error is not None:
            await self._give_filtered(_ignore_usage)

    async def _give_filtered(self, note_usage: Callable[[Usage], None]) -> None:
        """Give the client the answer that a filter has ended."""
        assert self._filtered is not None
        started, answer = self._filtered
        response = HttpResponse(answer.status, [_JSON], WholeBody(answer.body))
        named = msgspec.structs.replace(started, headers=answer.headers)
        await self._respond(response, named, note_usage)

    def _view(self) -> ModelView:
        view = self._services.dispatcher.model(self._request.body.model)
        if view is None:
            raise model_not_found(self._request.body.model)
        return view

    def _instead_of_tokens(self, view: ModelView) -> UseProvider:
        """The providers for a model whose engines take tokens and so cannot serve the path. Raises
        `ApiError` 404 if none may answer.
        """
        path = f"/v1{self._request.path}"
        chain = view.fallback if view.cloud and self._caller.cloud else ()
        if not chain:
            raise no_such_path(view.name, path)
        reason = f"the workers of {view.name} do not serve {path}"
        return UseProvider(self._services.dispatcher.next_ticket(), chain, reason)

    async def _by_engine(self, view: ModelView) -> UseProvider | None:
        request, services = self._request, self._services
        session = None if request.body.raw is None else session_of(request.body.raw)
        job = other_job(view.name, session, self._caller, request.body.body)
        run: RelayRun

        async def exchange(provider: Provider, target: FallbackConfig, lease: Lease) -> None:
            started = Started(
                served_by="worker",
                worker=provider.name,
                cached_tokens=0,
                route=lease.reason,
                model=view.name,
            )
            begin = partial(run.begin, lease)
            try:
                await self._forward(provider, target, started, run.note_usage, begin)
            except ProviderUnavailable as error:
                if self._filtered is None:
                    raise
                # Another worker of the model has the same filter.
                begin()
                await self._give_filtered(run.note_usage)
                raise AnswerFiltered(str(error)) from error

        run = RelayRun(services, job, f"/v1{request.path}", exchange)
        try:
            return await run.run(cloud=True)
        finally:
            if run.has_begun:
                usage = run.usage or Usage(0, 0, 0)
                services.spending.record_local(
                    self._caller.key, view.name, usage, self._caller.trace.turn
                )
                services.counters.count(usage)

    async def _by_provider(
        self, provider: Provider, target: FallbackConfig, sent: ProviderRequest, bill: Bill
    ) -> None:
        del sent  # `sent` has the form of a chat; the client's own bytes are sent instead
        started = Started(
            served_by=f"cloud:{provider.name}",
            worker="",
            cached_tokens=0,
            route=f"{target.provider} serves it",
            model=target.model,
        )
        try:
            status = await self._forward(provider, target, started, bill.note_usage, _ignore)
        except ProviderUnavailable as error:
            settle_failure(bill, error)
            raise
        if status >= _REFUSED:
            bill.waive()
        bill.complete()

    async def _forward(
        self,
        provider: Provider,
        target: FallbackConfig,
        started: Started,
        note_usage: Callable[[Usage], None],
        begin: Callable[[], None],
    ) -> int:
        """Pass the request on to one server, and its response to the client; returns its status."""
        body, status = self._request.body, 0
        if body.raw is not None:
            body = body.with_fields(apply_params(body.raw, target.params))

        async def respond(response: HttpResponse, headers: tuple[Header, ...]) -> None:
            nonlocal status
            status = response.status
            begin()
            named = msgspec.structs.replace(started, headers=headers)
            await self._respond(response, named, note_usage)

        try:
            await provider.forward(
                self._request.path,
                body.content_type,
                body.renamed(target.model),
                respond,
                headers=self._headers,
            )
        except ProviderUnavailable as error:
            if self._filtered is None and isinstance(error.filtered, ProviderAnswer):
                self._filtered = started, error.filtered
            raise
        return status

    def _as_chat(self) -> ChatRequest:
        """A chat of the same size, which bounds the cost: one byte is at most one token."""
        body = self._request.body
        raw = {**(body.raw or {"prompt": " " * len(body.body)}), "messages": []}
        n = count_of(body.fields, self._request.path)
        return ChatRequest(model=body.model, messages=(), raw=raw, n=n, num_bytes=len(body.body))


def _ignore_usage(_: Usage) -> None:
    """The usage of a provider's answer is on its bill already."""


def _ignore() -> None:
    """Do nothing when a provider's response begins."""
