"""What clients are told of failures and waits, and what keeps their clocks from running out."""

import json
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from gateway.api import ApiError
from gateway.api.events import ChoiceFinished, TextDelta, UpstreamChunk
from gateway.http.routes import edge_app
from tests.fakes.asgi import STARTED, Exchange, Script, chat_body, scripted_edge
from tests.fakes.messages_checker import check_messages

CLAUDE_CODE = ((b"user-agent", b"claude-cli/2.1.332 (external, cli)"),)
CLINE = (
    (b"user-agent", b"ai-sdk/openai-compatible/3.0.37 ai-sdk/provider-utils/5.0.30 runtime/bun"),
)
OTHER = ((b"user-agent", b"Anthropic/Python 2.14.0"),)
BODY = msgspec.json.encode(
    {
        "model": "alpha",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
    }
)
RESPONSE_BODY = b'{"model":"alpha","input":"Hi","stream":true}'
CUT = ApiError(502, "upstream connection lost", code="upstream_connection_lost")
LASTING = ApiError(429, "It resets on Monday.", code="spending_limit_reached", retry_after_s=3600)


def exchange(
    *steps: Any, path: str = "/v1/messages", headers: Any = CLAUDE_CODE, **config: Any
) -> Exchange:
    bodies = {"/v1/messages": BODY, "/v1/responses": RESPONSE_BODY}
    body = bodies.get(path) or chat_body()
    app = edge_app(scripted_edge(Script(*steps), **config))
    return Exchange(app, path=path, body=body, headers=headers)


def has_ended(asked: Exchange) -> bool:
    return not asked.writes[-1][1].get("more_body", True)


@pytest.mark.parametrize("before", [(12.0,), (STARTED, TextDelta(0, "half"))])
async def test_a_failure_that_may_pass_breaks_the_stream_of_claude_code(
    before: tuple[Any, ...], autojump_clock: MockClock
) -> None:
    """A failure that may pass breaks the stream of Claude Code, which then asks again for a stream.
    Behind an error event it asks without one, and gives whole answers up after 300 s.
    """
    asked = await exchange(*before, CUT).run()
    assert asked.status == 200
    assert b"event: error" not in asked.content
    assert b"message_stop" not in asked.content
    assert not has_ended(asked)


@pytest.mark.parametrize(
    ("headers", "config"), [(OTHER, {}), (CLAUDE_CODE, {"break_streams_of": ()})]
)
async def test_other_clients_of_messages_get_the_event(
    headers: Any, config: dict[str, Any], autojump_clock: MockClock
) -> None:
    """Other clients of Messages get the error event; the configuration names the user agents whose
    streams break.
    """
    asked = await exchange(STARTED, TextDelta(0, "half"), CUT, headers=headers, **config).run()
    assert check_messages(asked.content).error is not None
    assert has_ended(asked)


async def test_the_configuration_names_other_clients(autojump_clock: MockClock) -> None:
    """Beginnings of user agents."""
    steps = (STARTED, TextDelta(0, "half"), CUT)
    asked = await exchange(*steps, headers=OTHER, break_streams_of=("Anthropic/",)).run()
    assert not has_ended(asked)


@pytest.mark.parametrize("error", [LASTING, ApiError(400, "No.", code="invalid_value")])
async def test_a_failure_that_stays_is_an_event_for_claude_code(
    error: ApiError, autojump_clock: MockClock
) -> None:
    """Asking again would not help: the reason is told."""
    asked = await exchange(12.0, error).run()
    told = check_messages(asked.content).error
    assert told is not None
    assert told["message"] == error.message


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("agent", "error", "config", "status"),
    [
        ("QwenCode/0.24.4 (linux; x64)", LASTING, {}, 402),
        ("opencode/1.18.33", LASTING, {}, 402),
        ("ai-sdk-openai/4.0.118 ai-sdk-provider-utils/5.0.81", LASTING, {}, 402),
        ("ai-sdk/openai-compatible/3.0.37", LASTING, {}, 402),
        ("pi/1.6.0 (linux; node/v24.22.3; x64)", LASTING, {}, 402),
        ("QwenCode/0.24.4", LASTING, {"lasting_limits_402": ()}, 429),
        ("QwenCode/0.24.4", ApiError(429, "x", code="busy", retry_after_s=7200), {}, 429),
        ("QwenCode/0.24.4", ApiError(503, "x", code="unavailable"), {}, 503),
        ("OpenAI/Python 3.57.0", LASTING, {}, 429),
        ("own/1", LASTING, {"lasting_limits_402": ("own/",)}, 402),
    ],
)
async def test_a_limit_that_lasts_ends_clients_that_ask_again_after_any_429(
    agent: str, error: ApiError, config: dict[str, Any], status: int, path: str
) -> None:
    """qwen-code asked 19 times in 400 s, opencode six times, pi four times, whatever
    `x-should-retry` said.
    """
    headers = ((b"user-agent", agent.encode()),)
    asked = await exchange(error, path=path, headers=headers, **config).run()
    assert asked.status == status
    assert error.message.encode() in asked.content
    assert (b"billing_error" in asked.content) == (status == 402)
    assert (b"rate_limit" in asked.content) == (status == 429)


@pytest.mark.parametrize("before", [(12.0,), (STARTED, TextDelta(0, "half"))])
async def test_a_failure_that_may_pass_breaks_the_chat_of_cline(
    before: tuple[Any, ...], autojump_clock: MockClock
) -> None:
    """A failure that may pass breaks the chat of Cline: behind an error event its task ends; behind
    a broken connection it asks again.
    """
    path = "/v1/chat/completions"
    asked = await exchange(*before, CUT, path=path, headers=CLINE).run()
    assert asked.status == 200
    assert b"error" not in asked.content
    assert not has_ended(asked)


async def test_other_chats_get_the_event(autojump_clock: MockClock) -> None:
    """Clients that the configuration does not name are told in words."""
    path = "/v1/chat/completions"
    asked = await exchange(STARTED, TextDelta(0, "half"), CUT, path=path, headers=OTHER).run()
    assert has_ended(asked)
    assert b"upstream connection lost" in asked.content


UNSERVED = ApiError(503, "No worker serves alpha.", code="unavailable", retry_after_s=10)
FULL = ApiError(429, "The queue is full.", code="busy", retry_after_s=7)
AGAIN = "You can retry your request."


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize(
    ("error", "says_so"),
    [
        (UNSERVED, True),
        (FULL, True),
        (ApiError(500, "Engines failed.", code="engine_failed"), True),
        (CUT, False),
        (LASTING, False),
        (ApiError(422, "Engines died.", code="poisoned_request"), False),
        (ApiError(400, "No.", code="invalid_value"), False),
    ],
)
async def test_behind_a_head_the_words_say_that_the_request_may_be_sent_again(
    error: ApiError, says_so: bool, path: str, autojump_clock: MockClock
) -> None:
    """No status does there. A lost connection has its own words."""
    asked = await exchange(12.0, error, path=path, headers=OTHER).run()
    assert asked.status == 200
    assert error.message.encode() in asked.content
    assert (AGAIN.encode() in asked.content) == says_so


async def test_before_the_head_the_status_says_so(autojump_clock: MockClock) -> None:
    """The text of a whole error is the error's own."""
    asked = await exchange(UNSERVED, path="/v1/chat/completions", headers=OTHER).run()
    assert (asked.status, asked.json["error"]["message"]) == (503, UNSERVED.message)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_failures_of_servers_have_the_type_of_openai(status: int) -> None:
    """Continue asks again on this type, which is all that a stream tells its SDK."""
    error = ApiError(status, "x", retry_after_s=1)
    assert json.loads(error.body())["error"]["type"] == "server_error"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("error", "retry_after", "should_retry"),
    [
        (LASTING, None, "false"),
        (ApiError(429, "x", code="rate_limit_exceeded", retry_after_s=90), None, "false"),
        (ApiError(429, "x", code="rate_limit_exceeded", retry_after_s=60), "60", None),
        (ApiError(429, "x", code="spending_limit_reached", retry_after_s=5), "5", None),
        (ApiError(429, "x", code="busy", retry_after_s=7200), "60", None),
        (ApiError(503, "x", code="unavailable", retry_after_s=4_000_000), "60", None),
        (ApiError(400, "x"), None, None),
    ],
)
async def test_no_client_is_sent_to_sleep(
    path: str, error: ApiError, retry_after: str | None, should_retry: str | None
) -> None:
    """No client is told to wait for more than a minute; a limit that lasts ends retries at once,
    with the time in its text.
    """
    asked = await exchange(error, path=path).run()
    assert asked.status == error.status
    assert asked.head.get("retry-after") == retry_after
    assert asked.head.get("x-should-retry") == should_retry


async def test_comments_of_a_provider_are_no_events(autojump_clock: MockClock) -> None:
    """Clients do not count them, so a keep-alive follows the last event all the same."""
    comments = [step for _ in range(8) for step in (4.0, UpstreamChunk(b": PROCESSING\n\n"))]
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}
    data = UpstreamChunk(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
    came_at = trio.current_time()
    asked = await exchange(
        STARTED, data, *comments, data, ChoiceFinished(0, "stop"), path="/v1/chat/completions"
    ).run()
    lines = [line for line in asked.content.split(b"\n") if line.startswith(b"data: {")]
    deltas = [json.loads(line[6:])["choices"][0]["delta"].get("content") for line in lines]
    assert deltas[0] == "a"
    assert deltas.count("") == 3, "one in each ten of 32 s"
    assert asked.content.count(b": PROCESSING") == 8
    assert trio.current_time() - came_at == 32.0
