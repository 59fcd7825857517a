"""The app: which handler serves which path and method.

Owns the paths and the small handlers; Starlette's `Router` matches. Must not know how a turn runs.
All layers are plain ASGI: Starlette's `BaseHTTPMiddleware` would cost 200 us per request and 17 us
per chunk.
"""

import functools
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, Protocol, final

from msgspec import UNSET
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api import (
    Alive,
    ApiError,
    Health,
    MessageModel,
    ModelList,
    ModelObject,
    ModelState,
    Version,
    check_target,
    message_models,
    model_not_found,
    nothing_at,
    parse_chat_request,
)
from gateway.conversations import ConversationList, PrefixList
from gateway.http import conversations_route, tokenize
from gateway.http.audited import Audited
from gateway.http.auth import Authenticator, header_of
from gateway.http.dashboard_route import DashboardRoute
from gateway.http.edge import Edge, model_named
from gateway.http.error_responses import header, json_bytes, send_body
from gateway.http.events_route import send_events
from gateway.http.exchange import Exchange, Handler
from gateway.http.generation import Generation
from gateway.http.messages_route import Messages
from gateway.http.metrics import CONTENT_TYPE, Metrics
from gateway.http.plain_server import answer_plainly
from gateway.http.response_writer import EXTENSION
from gateway.http.responses_route import ResponsesRoute
from gateway.routing import ModelView

_EXPOSED_HEADERS: Final = (
    b"x-herma-worker, x-herma-cached-tokens, x-herma-route, x-herma-served-by, "
    b"x-request-id, request-id, retry-after, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
_SLASHED: Final = "herma.slashed"
"""The key of the scope as it came, where a slash at the end of its path was left out."""
_PREFLIGHT_S: Final = 600
"""How long a browser may remember that an origin is allowed."""


class On(Protocol):
    """Makes the route of a path, from a handler per HTTP method."""

    def __call__(self, path: str, **handlers: Handler) -> Route: ...


def edge_app(edge: Edge) -> "EdgeApp":
    """The app over `edge`. The router asks its routes one after the other: what is below `/v1`, the
    pages of operators and monitors, and the API once more, because the base URL of some clients
    does not end in `/v1`.
    """
    authenticator = Authenticator(edge.settings)
    metrics = Metrics(edge.shown_models, edge.gauges, edge.spending, edge.process)
    metrics.show_rates(edge.settings)
    metrics.show_refused(authenticator.refused)
    generation = Generation(edge, metrics)

    def on(path: str, **handlers: Handler) -> Route:
        return Route(path, Methods(edge, authenticator, handlers))

    api = _api(on, edge, generation, metrics)
    unrouted = WithoutTrailingSlash(
        Methods(edge, authenticator, {"POST": generation.other}, otherwise=_nothing)
    )
    below_v1 = Mount("/v1", Router(api, redirect_slashes=False, default=unrouted))
    pages = _pages(on, metrics)
    if edge.dashboard is not None:
        shown = DashboardRoute(edge, edge.dashboard, metrics)
        pages += [
            Route("/", Methods(edge, authenticator, {"GET": shown.page}, otherwise=_nothing)),
            on("/dashboard/state", GET=shown.state),
            on("/dashboard/stream", GET=shown.stream),
            on("/dashboard/requests/{name}", GET=shown.request),
        ]
    routes = [below_v1, *pages, *api]
    router = Router(routes, redirect_slashes=False, default=unrouted)
    unrouted.router = router
    return EdgeApp(router, authenticator)


def _api(on: On, edge: Edge, generation: Generation, metrics: Metrics) -> list[Route]:
    """The paths that clients use, without `/v1`."""
    messages = Messages(edge, generation, metrics)
    responses = ResponsesRoute(edge, generation, metrics)
    models = ModelsRoute(int(edge.unix_time()))
    return [
        on("/chat/completions", POST=generation.chat),
        on("/messages", POST=messages.create),
        on("/responses", POST=responses.create),
        on("/completions", POST=generation.completions),
        on("/embeddings", POST=generation.embeddings),
        on("/models", GET=models.list),
        on("/models/{name:path}", GET=models.one),
        on("/messages/count_tokens", POST=messages.count_tokens),
        on("/tokenize", POST=tokenize.tokenize),
        on("/detokenize", POST=tokenize.detokenize),
        on("/tokenizer_info", GET=tokenize.tokenizer_info),
        on("/responses/compact", POST=responses.compact),
        on("/responses/input_tokens", POST=responses.count_tokens),
        on(
            "/responses/{name}",
            GET=responses.retrieve,
            DELETE=Audited("delete a response", responses.delete),
        ),
        on("/responses/{name}/cancel", POST=responses.cancel),
        on("/responses/{name}/input_items", GET=responses.input_items),
        on("/conversations", POST=conversations_route.create),
        on(
            "/conversations/{name}",
            GET=conversations_route.retrieve,
            POST=conversations_route.update,
            DELETE=Audited("delete a conversation", conversations_route.delete),
        ),
        on(
            "/conversations/{name}/items",
            GET=conversations_route.list_items,
            POST=conversations_route.add_items,
        ),
        on(
            "/conversations/{name}/items/{item}",
            GET=conversations_route.item,
            DELETE=Audited("delete an item", conversations_route.delete_item),
        ),
    ]


def _pages(on: On, metrics: Metrics) -> list[Route]:
    """The paths that operators, monitors and the first requests of clients ask for."""
    return [
        *[on(path, GET=_health) for path in ("/health", "/healthz", "/ping")],
        *[on(path, GET=_readiness) for path in ("/health/readiness", "/readyz")],
        *[on(path, GET=_alive) for path in ("/health/liveness", "/health/liveliness", "/livez")],
        on("/metrics", GET=functools.partial(_metrics, metrics)),
        on("/api/hello", GET=_hello),
        on("/version", GET=_version),
        on("/openapi.json", GET=_openapi),
        on("/events", GET=send_events),
        on("/admin/prefixes", GET=_prefixes),
        on("/admin/conversations", GET=_conversations),
        on("/debug/route", GET=_debug_route, POST=_debug_route),
    ]


@final
class WithoutTrailingSlash:
    """The app for paths without a route. A path that ends in a slash is looked for without the
    slash among the routes: some clients put a slash behind every path, and after a redirect they
    would not send the body again. All other requests go to `otherwise` unchanged.
    """

    def __init__(self, otherwise: ASGIApp) -> None:
        self.router: ASGIApp = otherwise
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given, path = scope.get(_SLASHED), scope["path"]
        if given is None and len(path) > 1 and path[-1] == "/" != path[-2]:
            plain = {**scope, "path": path[:-1], "root_path": "", _SLASHED: scope}
            await self.router(plain, receive, send)
        else:
            await self._otherwise(given or scope, receive, send)


@final
class EdgeApp:
    """The app: checks the origin of a request, then finds its handler: by its path, if a route has
    just that path, else by asking the router. Our server calls `enter`; the app itself is a
    coroutine function, as test clients ask.
    """

    def __init__(self, router: Router, authenticator: Authenticator) -> None:
        self.routes = router.routes
        self._by_path = endpoints_by_path(router.routes)
        # `Router.__call__` only awaits `app`, unless the router has a middleware.
        self._route: ASGIApp = router.app
        self._gate = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.enter(scope, receive, send)

    def enter(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """What answers the request. A coroutine here would live as long as the answer, and be
        passed through whenever the request is resumed.
        """
        if scope["type"] != "http":
            return self._route(scope, receive, send)
        if EXTENSION not in scope.get("extensions", ()):
            return answer_plainly(self, scope, receive, send)
        is_of_page = b"origin" in dict(scope["headers"])
        origin = self._gate.origin_of(scope) if is_of_page else None
        if origin is not None:
            if scope["method"] == "OPTIONS" and header_of(scope, b"access-control-request-method"):
                return _allow_origin(scope, origin, send)
            scope["extensions"][EXTENSION].extra_headers = _cors_headers(origin)
        path = scope["path"]
        endpoint = self._by_path.get(path)
        if endpoint is not None and not scope.get("root_path"):
            answered: Awaitable[None] = endpoint(scope, receive, send)
            return answered
        if "\n" in path:
            # The pattern of a route, which ends with `$`, would take one line break as nothing.
            if scope["method"] == "POST":
                check_target(scope["raw_path"])
            raise nothing_at(path)
        return self._route(scope, receive, send)


def endpoints_by_path(routes: Sequence[BaseRoute], below: str = "") -> dict[str, ASGIApp]:
    """The endpoints of the routes without parameters, as the router finds them by asking one route
    after the other.
    """
    found: dict[str, ASGIApp] = {}
    for route in routes:
        if isinstance(route, Mount):
            found = endpoints_by_path(route.routes, f"{below}{route.path}") | found
        elif isinstance(route, Route) and not route.param_convertors:
            found.setdefault(f"{below}{route.path}", route.endpoint)
    return found


def _cors_headers(origin: str) -> tuple[tuple[bytes, bytes], ...]:
    return (
        header(b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", _EXPOSED_HEADERS),
        (b"vary", b"Origin"),
    )


async def _allow_origin(scope: Scope, origin: str, send: Send) -> None:
    """Answer a browser's preflight request."""
    wanted = header_of(scope, b"access-control-request-headers") or ""
    headers = (
        header(b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        header(b"access-control-allow-headers", wanted),
        header(b"access-control-max-age", _PREFLIGHT_S),
        (b"vary", b"Origin"),
    )
    await send_body(send, 200, b"OK", content_type=b"text/plain; charset=utf-8", headers=headers)


@final
class Methods:
    """A handler per HTTP method, as the endpoint of a route. Any other method is for `otherwise`,
    which is a 405 that names them.

    It returns the handler's coroutine instead of awaiting it: one of its own would be passed
    through whenever the request is resumed.
    """

    def __init__(
        self,
        edge: Edge,
        authenticator: Authenticator,
        handlers: Mapping[str, Handler],
        otherwise: Handler | None = None,
    ) -> None:
        self.handlers = handlers
        self._edge = edge
        self._gate = authenticator
        self._otherwise = otherwise or self._refuse

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        method = scope["method"]
        if method == "POST" and scope.get("path_params"):
            # No path is read here in another way than a provider would read it.
            check_target(scope["raw_path"])
        handler = self.handlers.get("GET" if method == "HEAD" else method, self._otherwise)
        return handler(Exchange(self._edge, self._gate, scope, receive, send))

    async def _refuse(self, exchange: Exchange) -> None:
        names = [*self.handlers, *(["HEAD"] if "GET" in self.handlers else [])]
        taken = ", ".join(names)
        text = f"{exchange.path} does not take {exchange.scope['method']}; it takes {taken}."
        await exchange.send_error(ApiError(405, text), (header(b"allow", taken),))


async def _nothing(exchange: Exchange) -> None:
    raise nothing_at(exchange.path)


class ModelsRoute:
    """GET /v1/models and GET /v1/models/{name}. `created` is in Unix seconds."""

    def __init__(self, created: int) -> None:
        self._created = created

    async def list(self, exchange: Exchange) -> None:
        """Send all models."""
        exchange.identify()
        found = model_list(exchange.edge.models(), self._created)
        is_message = exchange.header(b"anthropic-version") is not None
        await exchange.send_json(message_models(found) if is_message else found)

    async def one(self, exchange: Exchange) -> None:
        """Send one model by name or alias; without a name, all models."""
        name = exchange.named()
        if not name:
            await self.list(exchange)
            return
        exchange.identify()
        entry = model_entry(exchange.edge.models(), name, self._created)
        is_message = exchange.header(b"anthropic-version") is not None
        await exchange.send_json(MessageModel.of(entry) if is_message else entry)


def model_list(models: tuple[ModelView, ...], created: int) -> ModelList:
    """All names and aliases of models, names first; `root` is the model's own name. Clients look
    for their model in the list, and take its context length from there. `created` is in Unix
    seconds.
    """
    names = [(model.name, model) for model in models]
    names += [(alias, model) for model in models for alias in model.aliases if alias[-1] != "*"]
    return ModelList("list", [_model_entry(name, model, created) for name, model in names])


def model_entry(models: tuple[ModelView, ...], name: str, created: int) -> ModelObject:
    """The model that answers to `name`. Raises `ApiError` 404."""
    model = model_named(models, name)
    if model is None:
        raise model_not_found(name)
    return _model_entry(name, model, created)


def _model_entry(name: str, model: ModelView, created: int) -> ModelObject:
    """Every number that could be a context length is the same, because clients take the first one
    that they find, also inside nested objects.
    """
    window = UNSET if model.context_length is None else model.context_length
    state = model.state if model.state in ("asleep", "waking") else UNSET
    return ModelObject(name, "model", created, model.owned_by, model.name, window, window, state)


async def _health(exchange: Exchange) -> None:
    """Send what is served. It is a 503 while the gateway drains."""
    health = health_of(exchange.edge)
    await exchange.send_json(health, status=503 if health.status == "draining" else 200)


async def _readiness(exchange: Exchange) -> None:
    """Send what is served, with 503 also while no model is served: probes read only the status."""
    health = health_of(exchange.edge)
    await exchange.send_json(health, status=200 if health.status == "ok" else 503)


def health_of(edge: Edge) -> Health:
    """What is served, and the state of each model."""
    models: dict[str, ModelState] = {
        model.name: "cloud" if model.is_away else model.state for model in edge.shown_models()
    }
    states = set(models.values())
    if edge.draining():
        return Health("draining", models)
    if states.isdisjoint({"ready", "cloud", "waking", "asleep"}):  # requests wake it
        return Health("starting" if "starting" in states else "down", models)
    return Health("ok", models)


async def _alive(exchange: Exchange) -> None:
    """Answer: the process lives, whatever is served."""
    await exchange.send_json(Alive("alive"))


async def _hello(exchange: Exchange) -> None:
    """Answer the first request of Claude Code, which checks that the server is there."""
    await exchange.send_json({"message": "hello"})


async def _version(exchange: Exchange) -> None:
    await exchange.send_json(Version(exchange.edge.version))


async def _openapi(exchange: Exchange) -> None:
    await exchange.send_body(200, _openapi_json(exchange.edge.version))


@functools.cache
def _openapi_json(version: str) -> bytes:
    """The document, which takes 8 ms to build."""
    from gateway.api.openapi import openapi_document  # noqa: PLC0415 -- few ask for it

    return json_bytes(openapi_document(version))


async def _metrics(metrics: Metrics, exchange: Exchange) -> None:
    exchange.check_admin()
    await exchange.send_body(200, metrics.render(), content_type=CONTENT_TYPE)


async def _conversations(exchange: Exchange) -> None:
    """Send the conversations of this process, the last used one first; with `?name=` only the
    conversations of that name and their subconversations.
    """
    exchange.check_admin()
    edge, name = exchange.edge, exchange.query.get("name", "")
    rows = edge.conversations(name)
    if name and not rows:
        raise ApiError(404, "No conversation of this name is known here.")
    shown = ConversationList(edge.spending().currency, edge.unix_time(), tuple(rows))
    await exchange.send_json(shown)


async def _prefixes(exchange: Exchange) -> None:
    """Send what breaks the prefixes of prompts, by client, the most costly first."""
    exchange.check_admin()
    await exchange.send_json(PrefixList(exchange.edge.prefixes()))


async def _debug_route(exchange: Exchange) -> None:
    """Send where a chat request would go now, and why. Nothing is generated or reserved."""
    exchange.check_admin()
    edge, caller = exchange.edge, exchange.identify()
    request = await edge.read(caller, await exchange.body(), parse_chat_request)
    await exchange.send_json(await edge.preview(request, caller))
