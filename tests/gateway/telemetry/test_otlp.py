"""Spans that a real OTLP receiver gets over HTTP, which fails at first."""

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import trio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from config import TracesConfig
from protocol.errors import ConfigError
from tests.fakes.running_gateway import open_gateway
from tests.fakes.served import ask
from tests.fakes.whole_gateway import whole_gateway

PATIENCE_S = 60.0
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = f"{PARENT[:-1]}0"
CHAT = b'{"model": "alpha", "messages": [{"role": "user", "content": "A secret"}]}'


class Receiver(HTTPServer):
    """Answers 503 to its first `failures` requests."""

    def __init__(self, failures: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.failures = failures
        self.num_failed = 0
        self.bodies: list[bytes] = []

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for body in self.bodies
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        is_down = self.server.num_failed < self.server.failures
        self.server.num_failed += is_down
        if not is_down:
            assert self.path == "/v1/traces"
            self.server.bodies.append(body)
        self.send_response(503 if is_down else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(failures=2) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def attributes_of(item: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in item.attributes}


async def test_a_request_becomes_a_span_of_its_client_s_trace(receiver: Receiver) -> None:
    """A request becomes a span of its client's trace, with its phases, tokens and server; a client
    that is not sampled has none; no text leaves.
    """
    endpoint = f"http://127.0.0.1:{receiver.server_port}/v1/traces"
    async with whole_gateway(
        patience_s=PATIENCE_S, traces=TracesConfig(endpoint=endpoint)
    ) as whole:
        target = "/v1/chat/completions"
        await ask(whole.url, "POST", target, CHAT, traceparent=UNSAMPLED)
        reply = await ask(whole.url, "POST", target, CHAT, traceparent=PARENT)
        missing = CHAT.replace(b"alpha", b"beta")
        assert (await ask(whole.url, "POST", target, missing)).status == 404
        with trio.fail_after(PATIENCE_S):
            while len(receiver.spans) < 2:  # noqa: ASYNC110 - another thread gets them
                await trio.sleep(0.05)
        counters = whole.gateway.services.counters
        with trio.fail_after(PATIENCE_S):
            while not counters.spans_sent:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert counters.spans_lost == 0
    assert receiver.num_failed == 2
    assert b"secret" not in b"".join(receiver.bodies)
    span, failed = receiver.spans
    assert (span.name, span.kind) == ("chat alpha", 2)
    assert span.trace_id.hex() == PARENT[3:35]
    assert span.parent_span_id.hex() == PARENT[36:52]
    told = attributes_of(span)
    assert told["gen_ai.response.id"] == reply.json["id"]
    assert told["gen_ai.usage.output_tokens"] == reply.json["usage"]["completion_tokens"]
    assert (told["herma.worker"], told["gen_ai.provider.name"]) == ("w1", "herma")
    assert [event.name for event in span.events if event.name != "queued"] == ["prefill", "decode"]
    times = [span.start_time_unix_nano, *(one.time_unix_nano for one in span.events)]
    assert sorted(times) == times
    assert times[-1] <= span.end_time_unix_nano
    assert not failed.parent_span_id
    assert failed.status.code == 0
    assert attributes_of(failed)["error.type"] == "model_not_found"
    resource = ExportTraceServiceRequest.FromString(receiver.bodies[0]).resource_spans[0].resource
    assert attributes_of(resource)["service.name"] == "herma"


async def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found at the start, with what to install."""
    monkeypatch.setitem(sys.modules, "gateway.telemetry.otlp", None)
    with pytest.raises(ConfigError, match=r"pip install 'herma\[otel\]'"):
        async with open_gateway(traces=TracesConfig(endpoint="http://127.0.0.1:9/v1/traces")):
            pass


async def test_without_the_table_no_parent_is_kept() -> None:
    """Without the table no parent span is kept and OpenTelemetry is not imported."""
    async with whole_gateway() as whole:
        await ask(whole.url, "POST", "/v1/chat/completions", CHAT, traceparent=PARENT)
        (trace,) = whole.gateway.services.traces.recent()
        assert trace.parent == ("", "")
        assert whole.gateway.services.span_export is None
