"""A real gateway in front of servers that take and give text only, launched by real workers."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.fakes.checked_http import checked_client
from tests.fakes.foreign_process import pids_of, stub_argv
from tests.fakes.herma_process import HermaProcess, herma_up
from tests.fakes.ports import free_ports
from tests.fakes.text_engine import SPEECH_BYTES, answer_to

BOUND_S = 60.0

FLEET = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"
max_body_bytes = 33554432

[[models]]
name = "m"
aliases = ["also-m"]

[[models]]
name = "tiny"
"""

WORKER = """
[[workers]]
name = "{name}"
model = "there"
serves = "m"
engine = "openai"
url = "http://127.0.0.1:{port}"
probe_context = 64
refused_fields = ["x_refused"]
launch = {{ argv = {argv} }}
"""

NATIVE = """
[[workers]]
name = "own"
model = "builtin:herma-tiny"
serves = "tiny"
engine = "synthetic"
"""


class Fleet:
    """The gateway, and where its engines listen."""

    def __init__(self, herma: HermaProcess, ports: dict[str, str]) -> None:
        self.herma = herma
        self.ports = ports

    def client(self) -> httpx.Client:
        return checked_client(self.herma.base_url, timeout_s=BOUND_S)

    def told(self, name: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.ports[name]}/stub"
        told: dict[str, Any] = httpx.get(url, timeout=BOUND_S).json()
        return told

    def change(self, name: str, **settings: Any) -> None:
        url = f"http://127.0.0.1:{self.ports[name]}/stub"
        httpx.post(url, json=settings, timeout=BOUND_S).raise_for_status()

    def kill(self, name: str) -> None:
        (pid,) = pids_of(self.ports[name])
        os.kill(pid, signal.SIGKILL)

    def kill_busy(self) -> str:
        """Kill the engine that has a request now."""
        name = next(name for name in self.ports if self.told(name)["running"])
        self.kill(name)
        return name


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two of them serve one model; our own engine serves another."""
    folder = tmp_path_factory.mktemp("text")
    first = free_ports(2)
    ports = {"a": str(first), "b": str(first + 1)}
    text = FLEET.format(folder=folder) + NATIVE
    for name, port in ports.items():
        argv = json.dumps(stub_argv(port, kind="openai", token_ms=5, cached=4))
        text += WORKER.format(name=name, port=port, argv=argv)
    config = folder / "herma.toml"
    config.write_text(text)
    with herma_up(config) as herma:
        herma.wait_models_ready({"m": 2, "tiny": 1})
        yield Fleet(herma, ports)


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}


def _events(reply: httpx.Response, on_event: Callable[[int], None] = lambda _: None) -> list[Any]:
    """The data of each event; the last `[DONE]` as it is."""
    events: list[Any] = []
    for line in reply.iter_lines():
        if line.startswith("data: "):
            data = line[6:]
            events.append(data if data == "[DONE]" else json.loads(data))
            on_event(len(events))
    return events


def _text(events: list[Any]) -> str:
    chunks = [event for event in events if event != "[DONE]" and "error" not in event]
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]
    )


def test_a_chat_in_one_piece(fleet: Fleet) -> None:
    """Unknown fields pass both ways but those that the worker names; the model is called as it is
    called there; the usage is counted.
    """
    with fleet.client() as client:
        body = _body(model="also-m", max_tokens=12, x_mine={"deep": [1]}, x_refused=1)
        reply = client.post("/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        (choice,) = reply.json()["choices"]
        assert choice["message"]["content"] == answer_to("hello", 12)
        assert choice["message"]["x_own"] == [1, 2]
        worker = reply.headers["x-herma-worker"]
        assert reply.headers["x-herma-served-by"] == "worker"
        asked = fleet.told(worker)["requests"][-1]
        assert (asked["model"], asked["x_mine"]) == ("there", {"deep": [1]})
        assert "x_refused" not in asked
        metrics = client.get(fleet.herma.base_url.removesuffix("/v1") + "/metrics").text
        (line,) = [
            one for one in metrics.splitlines() if one.startswith("herma_completion_tokens_total")
        ][:1] or [""]
        assert line, metrics


def test_a_streamed_chat_with_and_without_usage(fleet: Fleet) -> None:
    """The engine's own chunks; the usage chunk only for those who asked for it."""
    with fleet.client() as client:
        for asked in (True, False):
            options = {"stream_options": {"include_usage": True}} if asked else {}
            body = _body(max_tokens=20, stream=True, **options)
            with client.stream("POST", "/chat/completions", json=body) as reply:
                assert reply.status_code == 200
                events = _events(reply)
            assert _text(events) == answer_to("hello", 20)
            assert events[-1] == "[DONE]"
            assert events[2]["choices"][0]["x_own"] == 1
            assert any(event != "[DONE]" and event.get("usage") for event in events) is asked


def test_a_stream_that_ends_without_done(fleet: Fleet) -> None:
    """A stream whose last chunk said why it ended, and whose response is whole, needs no `[DONE]`:
    the client gets one.
    """
    for name in fleet.ports:
        fleet.change(name, no_done=True)
    with fleet.client() as client:
        body = _body(max_tokens=5, stream=True)
        with client.stream("POST", "/chat/completions", json=body) as reply:
            events = _events(reply)
    assert _text(events) == answer_to("hello", 5)
    assert events[-1] == "[DONE]"
    for name in fleet.ports:
        fleet.change(name, no_done=False)


def test_other_paths_go_to_the_engine(fleet: Fleet) -> None:
    """Embeddings, raw completions, a form of 25 MB whose model is renamed, and an answer that is no
    text; a path that the engine lacks, or that the model's engine cannot have, is a clear 404.
    """
    with fleet.client() as client:
        reply = client.post("/embeddings", json={"model": "also-m", "input": "x"})
        assert reply.json()["data"][0]["embedding"] == [0.5, -1.0]
        assert reply.json()["model"] == "there"
        assert reply.headers["x-herma-worker"] in fleet.ports
        raw = {"model": "m", "prompt": "hello", "max_tokens": 9, "x_refused": 1}
        answer = client.post("/completions", json=raw).json()
        assert answer["choices"][0]["text"] == answer_to("hello", 9)
        with client.stream("POST", "/completions", json={**raw, "stream": True}) as reply:
            events = _events(reply)
        words = [choice["text"] for event in events[:-1] for choice in event["choices"]]
        assert "".join(words) == answer_to("hello", 9)
        sound = os.urandom(25 * 2**20)
        form = {"data": {"model": "m", "language": "de"}, "files": {"file": ("a.wav", sound)}}
        reply = client.post("/audio/transcriptions", **form)
        heard = reply.json()
        assert reply.status_code == 200, reply.text
        assert heard["is_there"]
        assert heard["num_bytes"] > len(sound)
        speech = client.post("/audio/speech", json={"model": "m", "input": "x", "voice": "y"})
        assert speech.headers["content-type"] == "audio/mpeg"
        assert len(speech.content) == SPEECH_BYTES
        for path, model in (("/rerank", "m"), ("/embeddings", "tiny")):
            refused = client.post(path, json={"model": model, "query": "x"})
            assert refused.status_code == 404
            error = refused.json()["error"]
            assert error["code"] == "path_not_served"
            assert f"/v1{path}" in error["message"]
        assert client.post("/nothing", json={}).status_code == 404


@pytest.mark.slow
def test_an_upload_leaves_room_for_streams(fleet: Fleet) -> None:
    """While 25 MB go to an engine that takes its time, its link carries a stream, and little of the
    upload waits there.
    """
    for name in fleet.ports:
        fleet.change(name, slow_upload=True)
    sound = {"file": ("a.wav", os.urandom(25 * 2**20))}

    def upload() -> int:
        with fleet.client() as client:
            form = {"data": {"model": "m"}, "files": sound}
            return client.post("/audio/transcriptions", **form).status_code

    with ThreadPoolExecutor(4) as pool, fleet.client() as client:
        uploads = [pool.submit(upload) for _ in range(4)]
        num_during = 0
        while not all(one.done() for one in uploads):
            body = _body(max_tokens=10, stream=True)
            with client.stream("POST", "/chat/completions", json=body) as reply:
                assert _text(_events(reply)) == answer_to("hello", 10)
            num_during += 1
        assert [one.result() for one in uploads] == [200] * 4
        assert num_during > 1
    for name in fleet.ports:
        fleet.change(name, slow_upload=False)


def test_responses_and_messages(fleet: Fleet) -> None:
    """Responses and Messages work over the chats of a text engine."""
    with fleet.client() as client:
        asked = {"model": "m", "input": "hello", "max_output_tokens": 20}
        answer = client.post("/responses", json=asked).json()
        assert answer["output"][0]["content"][0]["text"] == answer_to("hello", 20)
        assert answer["usage"]["output_tokens"] == 20
        message = {"role": "user", "content": "hello"}
        body = {"model": "m", "max_tokens": 20, "messages": [message], "stream": True}
        with client.stream("POST", "/messages", json=body) as reply:
            events = _events(reply)
        said = [event["delta"].get("text", "") for event in events if "delta" in event]
        assert "".join(said) == answer_to("hello", 20)


def test_a_conversation_stays_where_it_began(fleet: Fleet) -> None:
    """A conversation without a session's name stays at its worker by the digests of its text."""
    with fleet.client() as client:
        long = "hello " * 600
        messages = [{"role": "user", "content": long}]
        homes = set()
        for _ in range(4):
            reply = client.post("/chat/completions", json=_body(messages=messages, max_tokens=4))
            homes.add(reply.headers["x-herma-worker"])
            said = reply.json()["choices"][0]["message"]["content"]
            messages += [
                {"role": "assistant", "content": said},
                {"role": "user", "content": "and then?"},
            ]
        assert len(homes) == 1
        assert "tokens cached" in reply.headers["x-herma-route"]
        assert int(reply.headers["x-herma-route"].split(": ")[1].split()[0]) > 500


def test_an_engine_that_dies_before_the_first_byte_costs_nothing(fleet: Fleet) -> None:
    """The request goes to the other one."""
    with fleet.client() as client:
        for name in fleet.ports:
            fleet.change(name, die_after=0)
        fleet.change("b", die_after=None)
        for number in range(4):
            body = _body(
                max_tokens=6, stream=True, messages=[{"role": "user", "content": f"{number}"}]
            )
            with client.stream("POST", "/chat/completions", json=body) as reply:
                events = _events(reply)
            assert _text(events) == answer_to(f"{number}", 6)
            assert events[-1] == "[DONE]"
    fleet.herma.wait_models_ready({"m": 2})


def test_an_engine_that_dies_in_mid_stream_is_one_error(fleet: Fleet) -> None:
    """What was sent stays, one event says what happened, and there is no `[DONE]`. The engines hold
    back the rest of the answer until one is dead.
    """
    with fleet.client() as client:
        body = _body(max_tokens=200, stream=True)

        def kill(count: int) -> None:
            if count == 10:
                killed = fleet.kill_busy()
                for name in {*fleet.ports} - {killed}:
                    fleet.change(name, hold_after=None)

        for name in fleet.ports:
            fleet.change(name, hold_after=20)
        with client.stream("POST", "/chat/completions", json=body) as reply:
            assert reply.status_code == 200
            events = _events(reply, kill)
        *begun, last = events
        assert answer_to("hello", 200).startswith(_text(begun))
        assert last["error"]["message"] == "upstream connection lost"
        assert "[DONE]" not in events
    fleet.herma.wait_models_ready({"m": 2})


def test_a_client_that_leaves_stops_the_engine(fleet: Fleet) -> None:
    """Closing the stream is how such an engine learns of it."""
    with fleet.client() as client:
        body = _body(max_tokens=5000, stream=True)
        with client.stream("POST", "/chat/completions", json=body) as reply:
            next(reply.iter_lines())
    with fleet.client() as client:
        while sum(fleet.told(name)["running"] for name in fleet.ports):
            client.get("/models")
