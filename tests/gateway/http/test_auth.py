"""Keys, origins and the operator's pages."""

from typing import Any

import pytest
from starlette.types import ASGIApp

from config import KeyConfig, hash_api_key
from gateway.http.refused_access import RefusedAccess
from gateway.http.routes import edge_app
from tests.fakes.asgi import Exchange, Script, chat_body, scripted_edge

SECRET = "herma-sk-agent"
ADMIN_SECRET = "herma-sk-ädmin"
REMOTE = ("192.0.2.7", 40_000)
KEYS = (
    KeyConfig(name="agents", hash=hash_api_key(SECRET), weight=2.0, cache="private", cloud="never"),
    KeyConfig(name="root", hash=hash_api_key(ADMIN_SECRET), admin=True),
)


def _bearer(secret: str, scheme: str = "Bearer") -> tuple[bytes, bytes]:
    return b"authorization", f"{scheme} {secret}".encode()


async def _get(app: ASGIApp, path: str, *headers: tuple[bytes, bytes], **fields: Any) -> Exchange:
    return await Exchange(app, method="GET", path=path, headers=headers, **fields).run()


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (_bearer("wrong"),),
        (_bearer(""),),
        (_bearer(SECRET, "Basic"),),
        ((b"authorization", SECRET.encode()),),
        ((b"authorization", b"Bearer \xff\xfe"),),
    ],
)
async def test_a_missing_or_wrong_key_is_401(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    """With keys configured even a local caller needs one; no body is read and no turn runs."""
    script = Script()
    app = edge_app(scripted_edge(script, keys=KEYS))
    exchange = await Exchange(app, body=chat_body(), headers=headers).run()
    assert exchange.status == 401
    assert exchange.json["error"]["code"] == "invalid_api_key"
    assert exchange.head["www-authenticate"] == "Bearer"
    assert (await _get(app, "/v1/models", *headers)).status == 401
    assert not script.requests


async def test_a_key_gives_its_rights_to_the_turn() -> None:
    """The turn learns the key's name, weight, cache and cloud policy, and the session."""
    script = Script()
    headers = (_bearer(SECRET, "bearer"), (b"x-session-id", b"conversation-1"))
    app = edge_app(scripted_edge(script, keys=KEYS))
    assert (await Exchange(app, body=chat_body(), headers=headers).run()).status == 200
    (caller,) = script.callers
    assert (caller.key, caller.weight, caller.private_cache) == ("agents", 2.0, True)
    assert (caller.cloud, caller.admin, caller.session) == (False, False, "conversation-1")


async def test_without_keys_local_callers_are_anonymous_admins() -> None:
    """On loopback nothing is asked for, whatever key a client sends along."""
    for client in (("127.0.0.1", 1), ("::1", 1), ("::ffff:127.0.0.1", 1)):
        script = Script()
        app = edge_app(scripted_edge(script))
        exchange = Exchange(app, body=chat_body(), headers=(_bearer("x"),), client=client)
        assert (await exchange.run()).status == 200
        assert script.callers[0].admin
        assert script.callers[0].key == ""


@pytest.mark.parametrize("forwarded", [True, False])
async def test_without_keys_others_are_refused(forwarded: bool) -> None:
    """Without keys requests of another machine and those behind a local proxy are refused."""
    script = Script()
    headers = ((b"x-forwarded-for", b"192.0.2.7"),) if forwarded else ()
    client = ("127.0.0.1", 1) if forwarded else REMOTE
    app = edge_app(scripted_edge(script))
    exchange = await Exchange(app, body=chat_body(), headers=headers, client=client).run()
    assert exchange.status == 401
    assert "[[keys]]" in exchange.json["error"]["message"]
    assert not script.requests


async def test_open_pages_need_no_key() -> None:
    """Version and health answer anybody; unknown paths are 404 for anybody."""
    app = edge_app(scripted_edge(Script(), keys=KEYS))
    assert (await _get(app, "/version", client=REMOTE)).status == 200
    assert (await _get(app, "/health", client=REMOTE)).status == 200
    assert (await _get(app, "/api/tags", client=REMOTE)).status == 404


async def test_metrics_need_an_admin_key_off_loopback() -> None:
    """The operator's page is open on the machine itself and wants an admin key elsewhere."""
    app = edge_app(scripted_edge(Script(), keys=KEYS))
    assert (await _get(app, "/metrics")).status == 200
    assert (await _get(app, "/metrics", client=REMOTE)).status == 401
    assert (await _get(app, "/metrics", _bearer(SECRET), client=REMOTE)).status == 403
    for path in ("/admin/conversations", "/admin/prefixes"):
        assert (await _get(app, path, client=REMOTE)).status == 401
        assert (await _get(app, path, _bearer(SECRET), client=REMOTE)).status == 403
        assert (await _get(app, path, _bearer(ADMIN_SECRET), client=REMOTE)).status == 200
    assert (await _get(app, "/metrics", _bearer(ADMIN_SECRET), client=REMOTE)).status == 200
    forwarded = (b"forwarded", b"for=192.0.2.7")
    assert (await _get(app, "/metrics", forwarded)).status == 401


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (b"https://evil.example", b"127.0.0.1:8080"),
        (b"http://evil.example:8080", b"evil.example:8080"),
        (b"http://localhost:3000", b"localhost:8080"),
        (b"null", b"127.0.0.1:8080"),
        (b"", b""),
        (b"http://127.0.0.1.evil.example", b"127.0.0.1"),
        (b"http://[::1", b"[::1"),
    ],
)
async def test_a_foreign_web_page_is_refused(origin: bytes, host: bytes) -> None:
    """A page of another origin gets 403, even if its name resolves to this machine."""
    script = Script()
    app = edge_app(scripted_edge(script))
    headers = ((b"origin", origin), (b"host", host))
    exchange = await Exchange(app, body=chat_body(), headers=headers).run()
    assert exchange.status == 403
    assert (await _get(app, "/v1/models", *headers)).status == 403
    assert not script.requests


async def test_own_and_allowed_origins_pass() -> None:
    """The server's own loopback origin and configured ones are served; those get CORS headers."""
    app = edge_app(scripted_edge(Script(), allowed_origins=("https://chat.example/",)))
    own = ((b"origin", b"http://localhost:8080"), (b"host", b"localhost:8080"))
    assert (await Exchange(app, body=chat_body(), headers=own).run()).status == 200
    allowed = (b"origin", b"https://chat.example")
    exchange = await Exchange(app, body=chat_body(), headers=(allowed,)).run()
    assert exchange.status == 200
    assert exchange.head["access-control-allow-origin"] == "https://chat.example"
    for body in (chat_body(stream=False), b"{"):
        whole = await Exchange(app, body=body, headers=(allowed,)).run()
        assert whole.head["access-control-allow-origin"] == "https://chat.example", body
    asked = (b"access-control-request-method", b"POST")
    wanted = (b"access-control-request-headers", b"authorization")
    preflight = Exchange(app, method="OPTIONS", headers=(allowed, asked, wanted))
    assert (await preflight.run()).status == 200
    assert "authorization" in preflight.head["access-control-allow-headers"]


@pytest.mark.parametrize(
    ("header", "is_local"),
    [
        ((b"host", b"localhost:8080"), True),
        ((b"host", b"127.0.0.1:8080"), True),
        ((b"host", b"[::1]:8080"), True),
        ((b"host", b"10.1.2.3:8080"), True),
        ((b"host", b"herma.example.com"), False),
        ((b"host", b"herma.example.com:8080"), False),
        ((b"host", b"127.0.0.1.example.com"), False),
        ((b"host", b"localhost.example.com:80"), False),
        ((b"x-forwarded-for", b"10.1.2.3"), False),
        ((b"x-forwarded-proto", b"http"), False),
        ((b"via", b"1.1 proxy"), False),
        ((b"x-real-ip", b"10.1.2.3"), False),
        ((b"x-envoy-expected-rq-timeout-ms", b"15000"), False),
    ],
)
@pytest.mark.parametrize("has_keys", [True, False])
async def test_who_is_local(header: tuple[bytes, bytes], is_local: bool, has_keys: bool) -> None:
    """From this machine, by its loopback or an address, and not through a proxy; nobody else gets
    an operator's page without a key, nor, where there are no keys, anything.
    """
    keys = (KeyConfig(name="k", hash=hash_api_key("x"), admin=True),) if has_keys else ()
    app = edge_app(scripted_edge(Script(), keys=keys))
    metrics = await Exchange(app, method="GET", path="/metrics", headers=(header,)).run()
    assert metrics.status == (200 if is_local else 401)
    models = await Exchange(app, method="GET", path="/v1/models", headers=(header,)).run()
    assert models.status == (200 if is_local and not has_keys else 401)


async def test_who_is_kept_out_is_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """By the reason, once a minute at most, with the client's address and without what it sent."""
    app = edge_app(scripted_edge(Script(), keys=KEYS))
    with caplog.at_level("WARNING", "gateway.http.refused_access"):
        for headers in ((), (_bearer("wrong-secret"),), (_bearer("wrong-secret"),)):
            assert (await _get(app, "/v1/models", *headers, client=REMOTE)).status == 401
        assert (await _get(app, "/metrics", _bearer(SECRET), client=REMOTE)).status == 403
        answer = await _get(app, "/v1/models", (b"origin", b"http://evil.example"))
        assert answer.status == 403
    page = "Web pages of this origin may not use the gateway ([gateway] allowed_origins)."
    assert [record.getMessage() for record in caplog.records] == [
        "refused a client at 192.0.2.7: An API key is needed: send `Authorization: Bearer KEY`.",
        "refused a client at 192.0.2.7: This API key is not known here.",
        "refused a client at 192.0.2.7: This page needs an API key with `admin = true`.",
        f"refused a client at 127.0.0.1: {page}",
    ]
    metrics = await _get(app, "/metrics", _bearer(ADMIN_SECRET), client=REMOTE)
    found = [line for line in metrics.content.decode().splitlines() if "access_refused" in line]
    assert found[2:] == [
        'herma_access_refused_total{reason="no key"} 1.0',
        'herma_access_refused_total{reason="unknown key"} 2.0',
        'herma_access_refused_total{reason="no keys here"} 0.0',
        'herma_access_refused_total{reason="not an admin"} 1.0',
        'herma_access_refused_total{reason="foreign page"} 1.0',
    ]


def test_a_flood_of_wrong_keys_is_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """It says how many there were between."""
    now = 100.0
    refused = RefusedAccess(lambda: now)
    for _ in range(480):
        refused.note("unknown key", {"client": REMOTE}, "no.")
        now += 0.25
    refused.note("unknown key", {}, "no.")
    assert [record.getMessage() for record in caplog.records] == [
        "refused a client at 192.0.2.7: no.",
        "refused a client at 192.0.2.7: no. (239 more since the last such line)",
        "refused a client at ?: no. (239 more since the last such line)",
    ]
