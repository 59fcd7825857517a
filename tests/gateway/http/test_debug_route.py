"""GET /debug/route over real HTTP: where a request would go, with the costs of each worker."""

import json

from config import KeyConfig, hash_api_key
from gateway.http.routes import edge_app
from tests.fakes.asgi import Exchange, Script, scripted_edge
from tests.fakes.served import ask
from tests.fakes.whole_gateway import whole_gateway

CHAT = {"model": "alpha", "messages": [{"role": "user", "content": "Hi there"}]}


async def test_the_decision_is_told_and_nothing_happens() -> None:
    """One candidate, chosen, with its costs; no sequence is placed and none is counted."""
    async with whole_gateway() as whole:
        reply = await ask(whole.url, "GET", "/debug/route", json.dumps(CHAT).encode())
        again = await whole.post("/debug/route", **CHAT)
        metrics = await whole.get("/metrics")
    told = reply.json
    assert (told["model"], told["outcome"], told["why"]) == ("alpha", "placed", "only")
    assert told["num_waiting"] == 0
    (candidate,) = told["candidates"]
    assert candidate["is_chosen"]
    assert candidate["has_room"]
    assert candidate["uncached_tokens"] == told["prompt_tokens"] > 0
    assert candidate["cost_ms"] == sum(
        candidate[part] for part in ("wait_ms", "prefill_ms", "interference_ms")
    )
    assert told["reason"].startswith(candidate["worker"])
    assert again.json["candidates"] == told["candidates"]
    assert b"herma_route_decisions_total{" not in metrics.body


async def test_decisions_are_counted_by_why() -> None:
    """An answered chat is one decision, and the index has a size."""
    async with whole_gateway() as whole:
        await whole.post("/v1/chat/completions", **CHAT)
        metrics = await whole.get("/metrics")
    assert b'herma_route_decisions_total{why="only"} 1.0' in metrics.body
    assert b"herma_index_blocks " in metrics.body


async def test_unknown_models_and_bad_bodies_are_told_as_for_a_chat() -> None:
    """The page refuses what the request would be refused for."""
    async with whole_gateway() as whole:
        unknown = await whole.post("/debug/route", **{**CHAT, "model": "nobody"})
        empty = await whole.post("/debug/route", model="alpha")
    assert (unknown.status, unknown.json["error"]["code"]) == (404, "model_not_found")
    assert empty.status == 400


async def test_only_admins_may_look_from_afar() -> None:
    """Costs and sessions are the operator's business."""
    keys = (KeyConfig(name="agent", hash=hash_api_key("herma-sk-agent")),)
    edge = scripted_edge(Script(), keys=keys)
    exchange = Exchange(
        edge_app(edge),
        method="GET",
        path="/debug/route",
        client=("192.0.2.7", 40_000),
        headers=((b"authorization", b"Bearer herma-sk-agent"),),
    )
    await exchange.run()
    assert exchange.status == 403
