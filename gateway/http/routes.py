"""The ASGI app: which endpoint serves which path.

Owns the paths and the small endpoints. Must not know how a turn runs. All layers are plain ASGI:
starlette's `BaseHTTPMiddleware` would cost 200 us per request and 17 us per chunk.
"""

import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, final
from urllib.parse import parse_qs

from msgspec import UNSET
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
    parse_chat_request,
)
from gateway.conversations import ConversationList, PrefixList
from gateway.http.audited import Audited
from gateway.http.auth import Gatekeeper, header_of
from gateway.http.body import read_body
from gateway.http.conversations_route import ConversationsRoute
from gateway.http.dashboard_route import DashboardRoute
from gateway.http.edge import Edge, Endpoint, model_named
from gateway.http.error_responses import header, json_bytes, send_body, send_error, send_json
from gateway.http.events_route import Events
from gateway.http.generation import Generation
from gateway.http.messages_route import Messages
from gateway.http.metrics import CONTENT_TYPE, Metrics
from gateway.http.response_writer import EXTENSION
from gateway.http.responses_route import ResponsesRoute
from gateway.http.tokenize import Tokenizing
from gateway.routing import ModelView

_EXPOSED_HEADERS: Final = (
    b"x-herma-worker, x-herma-cached-tokens, x-herma-route, x-herma-served-by, "
    b"x-request-id, request-id, retry-after, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
_PASSED_ON: Final = ("/v1/", "/embeddings", "/rerank", "/images/", "/audio/")
_PREFLIGHT_S: Final = 600
"""How long a browser may remember that an origin is allowed."""


def edge_app(edge: Edge) -> ASGIApp:
    """The app over `edge`."""
    gate = Gatekeeper(edge.settings)
    metrics = Metrics(edge.shown_models, edge.gauges, edge.spending, edge.process)
    metrics.show_rates(edge.settings)
    generation, tokenizing = Generation(edge, gate, metrics), Tokenizing(edge, gate)
    messages = Messages(edge, generation, metrics)
    responses = ResponsesRoute(edge, gate, generation, metrics)
    models, debug_route = ModelsRoute(edge, gate), functools.partial(_debug_route, edge, gate)
    conversations = ConversationsRoute(edge, gate)
    audited = functools.partial(Audited, edge, gate)
    fixed: dict[str, ASGIApp] = {
        **_with_and_without_v1("/chat/completions", Methods(POST=generation.chat)),
        **_with_and_without_v1("/completions", Methods(POST=generation.completions)),
        **_with_and_without_v1("/embeddings", Methods(POST=generation.embeddings)),
        **_with_and_without_v1("/messages", Methods(POST=messages.create)),
        **_with_and_without_v1("/messages/count_tokens", Methods(POST=messages.count_tokens)),
        **_with_and_without_v1("/responses", Methods(POST=responses.create)),
        **_with_and_without_v1("/responses/compact", Methods(POST=responses.compact)),
        **_with_and_without_v1("/responses/input_tokens", Methods(POST=responses.count_tokens)),
        **_with_and_without_v1("/conversations", Methods(POST=conversations.create)),
        **_with_and_without_v1("/tokenize", Methods(POST=tokenizing.tokenize)),
        **_with_and_without_v1("/detokenize", Methods(POST=tokenizing.detokenize)),
        **_with_and_without_v1("/tokenizer_info", Methods(GET=tokenizing.info)),
        **_with_and_without_v1("/models", Methods(GET=models.list)),
        "/api/hello": Methods(GET=messages.hello),
        "/health": Methods(GET=functools.partial(_health, edge, is_readiness=False)),
        "/health/readiness": Methods(GET=functools.partial(_health, edge, is_readiness=True)),
        "/health/liveness": Methods(GET=_alive),
        "/health/liveliness": Methods(GET=_alive),
        "/version": Methods(GET=functools.partial(_version, edge)),
        "/openapi.json": Methods(GET=functools.partial(_openapi, edge)),
        "/metrics": Methods(GET=functools.partial(_metrics, gate, metrics)),
        "/events": Methods(GET=Events(edge, gate)),
        "/admin/prefixes": Methods(GET=functools.partial(_prefixes, edge, gate)),
        "/admin/conversations": Methods(GET=functools.partial(_conversations, edge, gate)),
        "/debug/route": Methods(GET=debug_route, POST=debug_route),
    }
    if edge.dashboard is not None:
        shown = DashboardRoute(edge, edge.dashboard, gate, metrics)
        fixed["/"] = shown.page
        fixed["/dashboard/state"] = Methods(GET=shown.state)
        fixed["/dashboard/stream"] = Methods(GET=shown.stream)
    named = {
        **_with_and_without_v1("/models/{name}", Methods(GET=models.one)),
        **_responses_by_id(responses, audited),
        **_conversations_by_id(conversations, audited),
    }
    if edge.dashboard is not None:
        named["/dashboard/requests/{name}"] = Methods(GET=shown.request)
    return EdgeApp(gate, fixed, named, functools.partial(_other, generation))


def _responses_by_id(
    responses: ResponsesRoute, audited: Callable[[str, Endpoint], Endpoint]
) -> dict[str, ASGIApp]:
    delete = audited("delete a response", responses.delete)
    one = Methods(GET=responses.retrieve, DELETE=delete)
    path = "/responses/{name}"
    return {
        **_with_and_without_v1(f"{path}/cancel", Methods(POST=responses.cancel)),
        **_with_and_without_v1(f"{path}/input_items", Methods(GET=responses.input_items)),
        **_with_and_without_v1(path, one),
    }


def _conversations_by_id(
    conversations: ConversationsRoute, audited: Callable[[str, Endpoint], Endpoint]
) -> dict[str, ASGIApp]:
    items = Methods(GET=conversations.list_items, POST=conversations.add_items)
    delete_item = audited("delete an item", conversations.delete_item)
    item = Methods(GET=conversations.item, DELETE=delete_item)
    delete = audited("delete a conversation", conversations.delete)
    one = Methods(GET=conversations.retrieve, POST=conversations.update, DELETE=delete)
    path = "/conversations/{name}"
    return {
        **_with_and_without_v1(f"{path}/items/{{item}}", item),
        **_with_and_without_v1(f"{path}/items", items),
        **_with_and_without_v1(path, one),
    }


def _with_and_without_v1(path: str, endpoint: ASGIApp) -> dict[str, ASGIApp]:
    """`endpoint` at both paths, because the base URL of some clients does not end in /v1."""
    return {f"/v1{path}": endpoint, path: endpoint}


@final
class EdgeApp:
    """Checks the origin of a request, then calls the endpoint of its path. Paths in `named` have
    parameters in braces, which become `scope["path_params"]`; a model's name may hold slashes.
    `other` serves paths of the API that an engine or provider may know.

    This layer and `Methods` return the endpoint's coroutine instead of awaiting it: a coroutine of
    their own would be passed through whenever the request is resumed.
    """

    def __init__(
        self,
        gate: Gatekeeper,
        fixed: Mapping[str, ASGIApp],
        named: Mapping[str, ASGIApp],
        other: ASGIApp,
    ) -> None:
        self._gate = gate
        self.fixed = fixed
        self.named = named
        self._patterns = [(_pattern(path), endpoint) for path, endpoint in named.items()]
        self._other = other

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        origin = self._gate.check_origin(scope)
        if origin is not None:
            if scope["method"] == "OPTIONS" and header_of(scope, b"access-control-request-method"):
                return _allow_origin(scope, origin, send)
            scope["extensions"][EXTENSION].extra_headers = _cors_headers(origin)
        endpoint = self.fixed.get(scope["path"]) or self._of_named(scope)
        return endpoint(scope, receive, send)

    def _of_named(self, scope: Scope) -> ASGIApp:
        if scope["method"] == "POST":
            # Before any match, so that no path is read in another way than it is passed on.
            check_target(scope["raw_path"])
        for pattern, endpoint in self._patterns:
            if match := pattern.fullmatch(scope["path"]):
                scope["path_params"] = match.groupdict()
                return endpoint
        is_passed_on = scope["path"].startswith(_PASSED_ON)
        return self._other if is_passed_on else _not_found


def _pattern(path: str) -> re.Pattern[str]:
    characters = ".*" if "/models/" in path else "[^/]+"
    return re.compile(re.sub(r"\\{(\w+)\\}", rf"(?P<\1>{characters})", re.escape(path)))


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


class Methods:
    """An endpoint per HTTP method; any other method is a 405 that names them."""

    def __init__(self, **endpoints: Endpoint) -> None:
        self.endpoints: Mapping[str, Endpoint] = endpoints
        names = [*endpoints, *(["HEAD"] if "GET" in endpoints else [])]
        self._allow = header(b"allow", ", ".join(names))

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        endpoint = self.endpoints.get(method)
        if endpoint is None:
            error = ApiError(405, f"{scope['path']} does not take {scope['method']}.")
            return send_error(send, error, (self._allow,))
        return endpoint(scope, receive, send)


class ModelsRoute:
    """GET /v1/models and GET /v1/models/{name}."""

    def __init__(self, edge: Edge, gate: Gatekeeper) -> None:
        self._edge = edge
        self._gate = gate
        self._created = int(edge.unix_time())

    async def list(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send all models."""
        self._gate.identify(scope)
        found = model_list(self._edge.models(), self._created)
        if header_of(scope, b"anthropic-version") is not None:
            await send_json(send, message_models(found))
            return
        await send_json(send, found)

    async def one(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send one model by name or alias; without a name, all models."""
        name = scope["path_params"]["name"]
        if not name:
            await self.list(scope, receive, send)
            return
        self._gate.identify(scope)
        entry = model_entry(self._edge.models(), name, self._created)
        if header_of(scope, b"anthropic-version") is not None:
            await send_json(send, MessageModel.of(entry))
            return
        await send_json(send, entry)


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


async def _health(
    edge: Edge,
    scope: Scope,  # noqa: ARG001
    receive: Receive,  # noqa: ARG001
    send: Send,
    *,
    is_readiness: bool,
) -> None:
    """Send what is served. It is a 503 while the gateway drains; as `is_readiness` also while no
    model is served, because probes read nothing but the status.
    """
    health = health_of(edge)
    is_well = health.status == "ok" or not (is_readiness or health.status == "draining")
    await send_json(send, health, status=200 if is_well else 503)


def health_of(edge: Edge) -> Health:
    """What is served, and the state of each model."""
    models: dict[str, ModelState] = {
        model.name: "cloud" if model.is_away else model.state for model in edge.shown_models()
    }
    states = set(models.values())
    if edge.draining():
        return Health("draining", models)
    if states.isdisjoint({"ready", "cloud", "waking", "asleep"}):  # a request wakes what sleeps
        return Health("starting" if "starting" in states else "down", models)
    return Health("ok", models)


async def _alive(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    """Answer: the process lives, whatever is served."""
    await send_json(send, Alive("alive"))


async def _version(edge: Edge, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    await send_json(send, Version(edge.version))


async def _openapi(edge: Edge, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    await send_body(send, 200, _openapi_json(edge.version))


@functools.cache
def _openapi_json(version: str) -> bytes:
    """The document, which takes 8 ms to build."""
    from gateway.api.openapi import openapi_document  # noqa: PLC0415 -- few ask for it

    return json_bytes(openapi_document(version))


async def _metrics(
    gate: Gatekeeper,
    metrics: Metrics,
    scope: Scope,
    receive: Receive,  # noqa: ARG001
    send: Send,
) -> None:
    gate.check_admin(scope)
    await send_body(send, 200, metrics.render(), content_type=CONTENT_TYPE)


async def _conversations(
    edge: Edge,
    gate: Gatekeeper,
    scope: Scope,
    receive: Receive,  # noqa: ARG001
    send: Send,
) -> None:
    """Send the conversations of this process, the last used one first; with `?name=` only those of
    that name and those that they began.
    """
    gate.check_admin(scope)
    query = parse_qs(scope["query_string"].decode("latin-1"))
    name = query.get("name", [""])[0]
    rows = edge.conversations(name)
    if name and not rows:
        raise ApiError(404, "No conversation of this name is known here.")
    shown = ConversationList(edge.spending().currency, edge.unix_time(), tuple(rows))
    await send_json(send, shown)


async def _prefixes(
    edge: Edge,
    gate: Gatekeeper,
    scope: Scope,
    receive: Receive,  # noqa: ARG001
    send: Send,
) -> None:
    """Send what breaks the prefixes of prompts, by client, the most costly first."""
    gate.check_admin(scope)
    await send_json(send, PrefixList(edge.prefixes()))


async def _other(generation: Generation, scope: Scope, receive: Receive, send: Send) -> None:
    """A path that an engine or provider may serve."""
    if scope["method"] == "POST":
        await generation.other(scope, receive, send)
    else:
        await _not_found(scope, receive, send)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    await send_error(send, ApiError(404, f"There is nothing at {scope['path']}."))


async def _debug_route(
    edge: Edge,
    gate: Gatekeeper,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Send where a chat request would go now, and why. Nothing is generated or reserved."""
    gate.check_admin(scope)
    caller = gate.identify(scope)
    body = await read_body(receive, scope["headers"], edge.config.max_body_bytes)
    request = await edge.read(caller, body, parse_chat_request)
    await send_json(send, await edge.preview(request, caller))
