"""The ASGI app.

Owns which path does what, and the order of the layers around it. Must not know how a turn runs.
All layers are plain ASGI: starlette's `BaseHTTPMiddleware` would cost 200 us per request and
17 us per chunk.
"""

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import final

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api import ApiError
from gateway.http.auth import Gatekeeper
from gateway.http.debug_route import DebugRoute
from gateway.http.edge import Edge
from gateway.http.errors import ErrorEdge, send_error
from gateway.http.event_stream import Events
from gateway.http.generation import Generation
from gateway.http.metrics import CONTENT_TYPE, Metrics
from gateway.http.models import model_entry, model_list
from gateway.http.reply import header, send_body, send_json
from gateway.http.response_writer import EXTENSION
from gateway.http.tokenize import Tokenizing

Endpoint = Callable[[Scope, Receive, Send], Awaitable[None]]

_EXPOSED_HEADERS = (
    "x-herma-worker",
    "x-herma-cached-tokens",
    "x-herma-route",
    "x-herma-served-by",
    "retry-after",
)


def edge_app(edge: Edge) -> ASGIApp:
    """The app over `edge`."""
    gate = Gatekeeper(edge.keys, edge.config.allowed_origins)
    metrics = Metrics(edge.models, edge.gauges, edge.spending, edge.process)
    generation, tokenizing = Generation(edge, gate, metrics), Tokenizing(edge, gate)
    models, debug_route = Models(edge, gate), DebugRoute(edge, gate)
    fixed: dict[str, ASGIApp] = {
        **_with_and_without_v1("/chat/completions", Methods(POST=generation.chat)),
        **_with_and_without_v1("/completions", Methods(POST=generation.completions)),
        **_with_and_without_v1("/tokenize", Methods(POST=tokenizing.tokenize)),
        **_with_and_without_v1("/detokenize", Methods(POST=tokenizing.detokenize)),
        **_with_and_without_v1("/models", Methods(GET=models.list)),
        "/health": Methods(GET=functools.partial(_health, edge)),
        "/version": Methods(GET=functools.partial(_version, edge)),
        "/openapi.json": Methods(GET=functools.partial(_openapi, edge)),
        "/metrics": Methods(GET=functools.partial(_metrics, gate, metrics)),
        "/events": Methods(GET=Events(edge, gate)),
        "/debug/route": Methods(GET=debug_route, POST=debug_route),
    }
    router = Router(fixed, _with_and_without_v1("/models/", Methods(GET=models.one)))
    inner: ASGIApp = router
    if gate.allowed_origins:
        from starlette.middleware.cors import CORSMiddleware  # noqa: PLC0415 -- few need it

        inner = CORSMiddleware(
            inner,
            allow_origins=gate.allowed_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=_EXPOSED_HEADERS,
        )
    return EdgeApp(gate, router, inner)


def _with_and_without_v1(path: str, endpoint: ASGIApp) -> dict[str, ASGIApp]:
    """Clients differ in whether their base URL ends in /v1."""
    return {f"/v1{path}": endpoint, path: endpoint}


class Router:
    """Which endpoint a path leads to. Those of `named` are the beginnings of paths; the rest is the
    name of a thing, `scope["path_params"]["name"]`.
    """

    def __init__(self, fixed: Mapping[str, ASGIApp], named: Mapping[str, ASGIApp]) -> None:
        self.fixed = fixed
        self.named = named

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path: str = scope["path"]
        endpoint = self.fixed.get(path) or self._of_named(path, scope)
        return endpoint(scope, receive, send)

    def _of_named(self, path: str, scope: Scope) -> ASGIApp:
        for beginning, endpoint in self.named.items():
            if path.startswith(beginning):
                scope["path_params"] = {"name": path.removeprefix(beginning)}
                return endpoint
        return _not_found


class Methods:
    """An endpoint per HTTP method; any other method is a 405 that names them."""

    def __init__(self, **endpoints: Endpoint) -> None:
        self._endpoints: Mapping[str, Endpoint] = endpoints
        names = [*endpoints, *(["HEAD"] if "GET" in endpoints else [])]
        self._allow = header(b"allow", ", ".join(names))

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        endpoint = self._endpoints.get(method)
        if endpoint is None:
            error = ApiError(405, f"{scope['path']} does not take {scope['method']}.")
            return send_error(send, error, (self._allow,))
        return endpoint(scope, receive, send)


class Models:
    """GET /v1/models and GET /v1/models/{name}."""

    def __init__(self, edge: Edge, gate: Gatekeeper) -> None:
        self._edge = edge
        self._gate = gate
        self._created = int(edge.unix_time())

    async def list(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """All models."""
        self._gate.identify(scope)
        await send_json(send, model_list(self._edge.models(), self._created))

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One model by name or alias; names may hold slashes. Without a name all of them."""
        name = scope["path_params"]["name"]
        if not name:
            await self.list(scope, receive, send)
            return
        self._gate.identify(scope)
        await send_json(send, model_entry(self._edge.models(), name, self._created))


@final
class EdgeApp:
    """HTTP goes through all layers, WebSockets nowhere. Begin and end of the server concern nobody:
    the actors live around it. Foreign web pages are refused before any route sees the request.

    Layers call each other plainly and give the endpoint's coroutine back: one of their own for each
    would be gone through again whenever the request is resumed.
    """

    def __init__(self, gate: Gatekeeper, router: Router, inner: ASGIApp) -> None:
        """`inner` is `router`, or what is wrapped around it."""
        self.router = router
        self._gate = gate
        self._inner = inner
        self._safe = ErrorEdge(self._guarded)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            # A server that pushes is ours, and tells errors by itself.
            is_ours = EXTENSION in scope.get("extensions", {})
            return (self._guarded if is_ours else self._safe)(scope, receive, send)
        return (_live if scope["type"] == "lifespan" else _refuse_socket)(receive, send)

    def _guarded(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        self._gate.check_origin(scope)
        return self._inner(scope, receive, send)


async def _live(receive: Receive, send: Send) -> None:
    for moment in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{moment}.complete"})


async def _refuse_socket(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1000})


async def _health(edge: Edge, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    models = {model.name: "cloud" if model.is_away else model.state for model in edge.models()}
    states = set(models.values())
    answers = not states.isdisjoint({"ready", "cloud"})
    status = "ok" if answers else "starting" if "starting" in states else "down"
    await send_json(send, {"status": status, "models": models})


async def _version(edge: Edge, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    await send_json(send, {"version": edge.version})


async def _openapi(edge: Edge, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    from gateway.api.openapi import openapi_document  # noqa: PLC0415 -- few ask for it

    await send_json(send, openapi_document(edge.version))


async def _metrics(
    gate: Gatekeeper,
    metrics: Metrics,
    scope: Scope,
    receive: Receive,  # noqa: ARG001
    send: Send,
) -> None:
    gate.check_admin(scope)
    await send_body(send, 200, metrics.render(), content_type=CONTENT_TYPE)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    await send_error(send, ApiError(404, f"There is nothing at {scope['path']}."))
