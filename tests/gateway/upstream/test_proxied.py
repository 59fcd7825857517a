"""Which requests go through a proxy of the environment, and how."""

import subprocess
import sys

import pytest
import trio
import trio.testing

from config import ProviderConfig
from gateway.upstream import Provider, ProviderUnavailable
from gateway.upstream.provider import client_for
from protocol.transport import HttpClient
from tests.fakes.scripted_http import ScriptedServer, open_server

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
PROXY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("environment", "is_ours"),
    [
        ({}, True),
        ({"HTTPS_PROXY": PROXY}, False),
        ({"ALL_PROXY": PROXY}, False),
        ({"HTTP_PROXY": PROXY}, True),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "api.example"}, True),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, True),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "other.example"}, False),
    ],
)
async def test_a_proxy_of_the_environment(
    environment: dict[str, str], is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our client has no proxies; requests that need one go through httpx."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    client = client_for("https://api.example/v1/chat/completions")
    assert isinstance(client, HttpClient) is is_ours


def test_without_a_proxy_httpx_is_not_imported() -> None:
    """Without a proxy httpx is not imported, which would take a third of the start and 12 MB."""
    code = (
        "import sys; from gateway.upstream.provider import client_for; "
        "client_for('https://api.example/v1'); print('httpx' in sys.modules)"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "False\n"


async def test_a_stream_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy is asked for the whole address, and its answer is read as any other."""
    choice = b'{"delta":{"content":"word"},"finish_reason":"stop"}'
    event = b'data: {"choices":[%b]}\n\n' % choice
    body = event + b"data: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    events: list[bytes] = []
    async with open_server(ScriptedServer([answer])) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        provider = Provider("far", ProviderConfig(base_url="http://far.example/v1"), None)
        with trio.fail_after(60):
            await provider.stream({"stream": True}, "large", events.append)
        await provider.aclose()
    assert b"".join(events) == body
    target = b"POST http://far.example/v1/chat/completions HTTP/1.1\r\n"
    assert proxy.requests[0].startswith(target)


async def test_a_kept_connection_through_a_proxy_that_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request may go out once more; it may not where a new connection ends so."""
    body = b'{"choices": [{"message": {}}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with open_server(ScriptedServer([head + body], num_answers=1)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        provider = Provider("far", ProviderConfig(base_url="http://far.example/v1"), None)
        with trio.fail_after(60):
            for was_kept in (True, False):
                if was_kept:
                    assert (await provider.complete({}, "large")).body == body
                proxy.num_answers = 1 if was_kept else 0
                with pytest.raises(ProviderUnavailable) as caught:
                    await provider.complete({}, "large")
                assert caught.value.was_kept is was_kept
        await provider.aclose()


async def test_a_kept_connection_through_a_proxy_that_ends_over_a_request(
    monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """A request whose kept connection through a proxy ends is not sent again at once, because it
    may be answered and billed.
    """
    body = b'{"choices": [{"message": {}}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    over = trio.Event()
    server = ScriptedServer([head + body], num_answers=1, may_end=over)

    async def end_after_a_minute() -> None:
        await server.heard(2)
        mock_clock.jump(60.0)
        over.set()

    async with open_server(server) as proxy, trio.open_nursery() as nursery:
        nursery.start_soon(end_after_a_minute)
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        provider = Provider("far", ProviderConfig(base_url="http://far.example/v1"), None)
        assert (await provider.complete({}, "large")).body == body
        with pytest.raises(ProviderUnavailable) as caught:
            await provider.complete({}, "large")
        assert not caught.value.was_kept
        await provider.aclose()
    assert (server.num_connections, len(server.requests)) == (1, 2)


async def test_connections_are_used_again_until_the_provider_is_closed() -> None:
    """Connections are used again until the provider is closed; a closed provider opens a new client
    when it is asked again.
    """
    body = b'{"choices": [{"message": {}}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with open_server(ScriptedServer([head + body])) as server:
        provider = Provider("far", ProviderConfig(base_url=server.url), None)
        for _ in range(3):
            assert (await provider.complete({}, "large")).body == body
        assert server.num_connections == 1
        await provider.aclose()
        await provider.complete({}, "large")
        assert server.num_connections == 2
        await provider.aclose()
