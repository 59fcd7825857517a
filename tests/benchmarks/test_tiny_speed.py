"""The built-in model's figures of speed: which bars fail, and which answers do not count."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
import trio

from benchmarks.serving.client import ServingSample, run_streams, tokens_per_s
from benchmarks.tiny_speed.agent import ask_agent
from benchmarks.tiny_speed.report import SpeedFigure, as_json, figures_table

USAGE = {
    "prompt_tokens": 500,
    "completion_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 0},
}
ANSWER: list[dict[str, Any]] = [
    {"choices": [{"delta": {"reasoning_content": "Hm."}, "finish_reason": None}]},
    {"choices": [{"delta": {"content": "Yes."}, "finish_reason": None}]},
    {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": USAGE},
]


class _Handler(BaseHTTPRequestHandler):
    """Answers every request with the same events and remembers the bodies."""

    protocol_version = "HTTP/1.1"
    status: int
    events: list[dict[str, Any]]
    bodies: list[bytes]

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        data = "".join(f"data: {json.dumps(event)}\n\n" for event in self.events).encode()
        self.send_response(self.status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


@contextmanager
def _serving(events: list[dict[str, Any]], status: int = 200) -> Iterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []
    names = {"status": status, "events": events, "bodies": bodies}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), names))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_agent_asks_with_46_kilobytes_and_17_tools() -> None:
    """What is timed is what the bar names."""
    with _serving(ANSWER) as (url, bodies):
        sample = ask_agent(url)
    body = json.loads(bodies[0])
    assert sample.body_bytes == len(bodies[0]) > 46 * 1024
    assert len(body["tools"]) == 17
    assert 0 < sample.first_token_s <= sample.total_s
    assert (sample.prompt_tokens, sample.output_tokens) == (500, 2)


@pytest.mark.parametrize(
    "events",
    [
        ANSWER[:-1],
        [ANSWER[-1]],
        [*ANSWER[:1], {"error": {"message": "upstream connection lost"}}],
    ],
    ids=["cut", "empty", "broken"],
)
def test_an_incomplete_answer_is_an_error(events: list[dict[str, Any]]) -> None:
    """Streams that are cut, say nothing or break are not answers."""
    with _serving(events) as (url, _), pytest.raises(RuntimeError):
        ask_agent(url)


def test_a_refusal_is_an_error() -> None:
    """A refusal is an error, as is a status that is not 200."""
    with _serving([], 503) as (url, _), pytest.raises(httpx.HTTPStatusError):
        ask_agent(url)


def test_no_two_runs_share_a_prompt() -> None:
    """A prefix hit would measure something else."""
    with _serving(ANSWER) as (url, bodies):
        for name in ("first", "second"):
            trio.run(run_streams, url, 2, 4, 2, lambda _: None, 20, name)
    starts = [json.loads(body)["messages"][0]["content"][:16] for body in bodies]
    assert len(starts) == 10  # each run's own first request warms up
    assert len({*starts}) == 10


def test_the_rate_is_of_the_whole_time() -> None:
    """Two answers that overlap: their tokens over first start to last end."""
    samples = [ServingSample(0.1, 500, 64, 10.0, 12.0), ServingSample(0.1, 500, 64, 11.0, 14.0)]
    assert tokens_per_s(samples) == 32


def test_every_bar_can_fail() -> None:
    """Bars of the kinds "at most", "at least" and neither can fail; the table says so."""
    figures = [
        SpeedFigure("late", 10.1, "s", at_most=10),
        SpeedFigure("slow", 59.9, "tokens/s", at_least=60),
        SpeedFigure("told", 1, "s"),
        SpeedFigure("good", 60, "tokens/s", at_least=60),
    ]
    assert [one["holds"] for one in as_json(figures)] == [False, False, True, True]
    lines = figures_table(figures).splitlines()[2:]
    assert lines[0] == "| late | 10.10 s | at most 10 | NO |"
    assert lines[1] == "| slow | 59.90 tokens/s | at least 60 | NO |"
    assert lines[2] == "| told | 1.00 s |  |  |"
    assert lines[3].endswith("| at least 60 | yes |")
