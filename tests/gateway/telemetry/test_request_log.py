"""One line per request: its fields, on a whole gateway and of made-up traces."""

import logging

import pytest

from gateway.api import Usage
from gateway.telemetry import AttemptTrace, RequestTrace, TurnTrace, log_request, request_line
from tests.fakes.running_gateway import wait_until
from tests.fakes.whole_gateway import WholeGateway, whole_gateway

LOGGER = "gateway.telemetry.request_log"
HELLO = [{"role": "user", "content": "A secret of the user"}]


def fields_of(line: str) -> dict[str, str]:
    """The pairs of a line."""
    pairs, _, why = line.partition(" why=")
    return {
        **dict(pair.split("=", 1) for pair in pairs.split(" ")),
        **({"why": why} if why else {}),
    }


async def lines_of(
    whole: WholeGateway, caplog: pytest.LogCaptureFixture, *, stream: bool
) -> list[str]:
    caplog.clear()
    asked = {"model": "alpha", "messages": HELLO}
    if stream:
        await whole.stream("/v1/chat/completions", **asked)
    else:
        await whole.post("/v1/chat/completions", **asked)
    await wait_until(lambda: not whole.gateway.services.traces.open)
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_one_line(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A request is one line with the worker, the tokens, the times and the reason of its route;
    nothing of its text.
    """
    caplog.set_level(logging.INFO)
    async with whole_gateway(log="requests") as whole:
        (line,) = await lines_of(whole, caplog, stream=stream)
    told = fields_of(line)
    assert told["request"].startswith("chatcmpl-")
    shown = ("api", "status", "model", "server", "key", "client", "finish")
    assert [told[name] for name in shown] == ["chat", "200", "alpha", "w1", "-", "other", "stop"]
    assert int(told["prompt"]) > 0
    assert int(told["output"]) > 0
    assert 0 <= int(told["first_ms"]) <= int(told["total_ms"])
    assert told["why"].startswith('"')
    assert "secret" not in line


async def test_it_is_off_unless_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """The log of requests is off by default, and then does not listen to the ends of requests."""
    caplog.set_level(logging.INFO)
    async with whole_gateway() as whole:
        assert log_request not in whole.gateway.services.traces._on_end
        assert await lines_of(whole, caplog, stream=False) == []


async def test_a_client_s_path_makes_no_second_line(caplog: pytest.LogCaptureFixture) -> None:
    """A client's path makes no second line and no further field: a path with a line break or a
    blank in it is refused, not logged.
    """
    caplog.set_level(logging.INFO)
    async with whole_gateway(log="requests") as whole:
        reply = await whole.post("/v1/x%0A2026%20status=200", model="alpha")
    assert reply.status == 400
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert not [line for line in lines if "2026" in line]


def test_a_failure_says_why_and_how_often_it_was_tried() -> None:
    """The provider that had it last; what is not known is a dash."""
    first = AttemptTrace("gpu0", 1.0, 1.1, "gpu0: it was the only one")
    second = AttemptTrace("deepseek", 2.0, 2.1, 'no worker of "m" is ready', is_cloud=True)
    turn = TurnTrace(prompt_tokens=90, attempts=[first, second], num_attempts=2)
    trace = RequestTrace(
        id="msg_1", api="messages", model="m", key="alice", client="codex", received_at=1.0,
        ended_at=3.5, status=502, error="no_provider_answered", served_by="cloud:deepseek",
        turn=turn,
    )  # fmt: skip
    assert request_line(trace) == (
        "request=msg_1 api=messages status=502 model=m server=cloud:deepseek key=alice "
        "client=codex prompt=90 cached=0 output=0 first_ms=- total_ms=2500 finish=- tries=2 "
        'error=no_provider_answered why="no worker of \\"m\\" is ready"'
    )
    trace.usage = Usage(100, 60, 7)
    assert " prompt=100 cached=60 output=7 " in request_line(trace)
    assert " server=- " in request_line(RequestTrace(id="r", served_by="none"))
