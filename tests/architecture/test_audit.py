"""What changes something leaves an audit line: all routes and control requests are walked."""

import dataclasses
import json
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import trio
from starlette.types import Receive, Scope, Send

from config import KeyConfig, hash_api_key
from gateway.api import ApiError
from gateway.http.audited import Audited
from gateway.http.auth import Authenticator
from gateway.http.exchange import Exchange as HandledExchange
from gateway.http.exchange import Handler
from gateway.http.routes import edge_app
from gateway.telemetry import AuditTrail, EventFeed
from housekeeping.audit import Act
from protocol.control_messages import READS, Answer, Ask, Done, decode_answer
from protocol.errors import ConfigError
from protocol.transport import ControlSocket
from tests.fakes.asgi import Exchange
from tests.fakes.routed import endpoints_of
from tests.fakes.shown_fleet import ShownFleet

SECRET = "herma-sk-admin"
SAFE = {"GET", "HEAD"}
USES = {
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/messages",
    "/messages/count_tokens",
    "/responses",
    "/responses/compact",
    "/responses/input_tokens",
    "/responses/{name}/cancel",
    "/conversations",
    "/conversations/{name}",
    "/conversations/{name}/items",
    "/tokenize",
    "/detokenize",
    "/debug/route",
}
"""POST to these uses the service, or ends a client's own use: what they leave is in the ledger and
the store. A route that is neither here nor audited fails below.
"""


FIELDS: dict[str, dict[str, Any]] = {
    "restart": {"force": True},
    "hold": {"drain_s": 1.5, "lease_s": 60},
    "probe": {"number": 1, "questions": [{"max_tokens": 2, "text": "secret words"}]},
    "replace": {"entry": ["herma"]},
}
"""What a request of that tag needs; a new kind that needs something is added here."""
AUTHORIZED = ((b"authorization", f"Bearer {SECRET}".encode()),)


class _Audited:
    """The app of a gateway with every route, and its audit."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "audit.jsonl"
        self.feed = EventFeed()
        key = KeyConfig(name="root", hash=hash_api_key(SECRET), admin=True)
        audit = AuditTrail(self.feed, self._path)
        self.edge = dataclasses.replace(ShownFleet(1).edge(keys=(key,)), audit=audit)
        self.app = edge_app(self.edge)

    def lines(self) -> list[dict[str, Any]]:
        text = self._path.read_text() if self._path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def changing(self) -> Iterator[tuple[str, str, Handler]]:
        """Method, path and handler of each route that may change something."""
        for path, endpoint in endpoints_of(self.app.routes).items():
            for method, handler in endpoint.handlers.items():
                if method not in SAFE:
                    yield method, path, handler


async def test_every_route_that_changes_something_is_audited(tmp_path: Path) -> None:
    """An admin's request to it leaves one line: key, address, what was named, how it ended."""
    audited, uses = _Audited(tmp_path), set[str]()
    for method, path, handler in audited.changing():
        if not isinstance(handler, Audited):
            assert method == "POST", path
            uses.add(path.removeprefix("/v1"))
            continue
        before = len(audited.lines())
        named = path.format(name="resp_1", item="msg_2")
        await Exchange(audited.app, method=method, path=named, headers=AUTHORIZED).run()
        (line,) = audited.lines()[before:]
        assert (line["who"], line["address"]) == ("key root", "127.0.0.1")
        assert line["what"] in {"resp_1", "resp_1/msg_2"}
        assert line["result"].startswith("refused: 404")
    assert uses == USES
    assert len(audited.lines()) == audited.feed.counts["admin act"] == 6


@pytest.mark.parametrize("error", [None, ApiError(403, "No.", code="not_stored"), ValueError()])
async def test_a_line_says_how_an_act_ended(tmp_path: Path, error: Exception | None) -> None:
    """Done, refused, or failed; without a known key nothing was done."""

    async def handler(exchange: HandledExchange) -> None:
        if error is not None:
            raise error
        await exchange.send_json({})

    audited = _Audited(tmp_path)
    authenticator = Authenticator(audited.edge.settings)
    forget = Audited("forget", handler)

    def act(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        scope["path_params"] = {}
        return forget(HandledExchange(audited.edge, authenticator, scope, receive, send))

    assert (await Exchange(act, method="DELETE").run()).status == 401
    assert not audited.lines()
    await Exchange(act, method="DELETE", headers=AUTHORIZED).run()
    results = {None: "done", ApiError: "refused: 403 not_stored", ValueError: "failed"}
    (line,) = audited.lines()
    assert (line["act"], line["result"]) == ("forget", results[error and type(error)])


async def test_every_request_of_a_control_socket_is_audited() -> None:
    """Each request that does more than read leaves a line, so a request that is added later is
    audited too.
    """
    acts: list[Act] = []

    async def answer(ask: Ask) -> Answer:
        if len(acts) % 2:
            raise ConfigError("it cannot be")
        return Done(1, ("model",))

    control = ControlSocket("audited", answer, acts.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(control.run)
        for kind in get_args(Ask):
            count = len(acts)
            async with await trio.open_unix_socket(str(control.path)) as stream:
                tag = str(kind.__struct_config__.tag)
                line = json.dumps({"type": tag, **FIELDS.get(tag, {})}).encode()
                await stream.send_all(line + b"\n")
                decode_answer(await stream.receive_some(65_536))
            assert [act.act for act in acts[count:]] == ([] if kind in READS else [tag])
        nursery.cancel_scope.cancel()
    assert acts[0].result == "done; changed: model"
    assert acts[1].result == "refused: it cannot be"
    assert all(act.who.startswith("user ") for act in acts)
    assert acts[0].what == "force True"
    assert "secret words" not in str(acts)
