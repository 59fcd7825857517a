"""A real gateway in front of somebody else's engines: two kinds, launched by real workers.

The stubs' next token is a function of all ids before it, so a resumed answer has exactly one right
continuation, whichever engine gives it.
"""

import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from tests.fakes.checked_http import checked_client
from tests.fakes.foreign_engine import next_id
from tests.fakes.foreign_process import pids_of, stub_argv
from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.ports import free_ports
from workers.model_dir import builtin_dir

BOUND_S = 60.0

FLEET = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "m"

[[models]]
name = "scripted"
"""

WORKER = """
[[workers]]
name = "{name}"
model = "builtin:herma-tiny"
serves = "{serves}"
engine = "{kind}"
url = "http://127.0.0.1:{port}"
probe_context = 64
launch = {{ argv = {argv} }}
"""

WEATHER = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Athens"}}\n</tool_call>'


class Fleet:
    """The gateway, and where its engines listen. The `pair` serves one model."""

    pair = "v", "l"

    def __init__(self, herma: HermaProcess, ports: dict[str, str]) -> None:
        self.herma = herma
        self.ports = ports

    def client(self) -> httpx.Client:
        return checked_client(self.herma.base_url, timeout_s=BOUND_S)

    def stub(self, worker: str) -> str:
        """Where a worker's engine tells what it does."""
        return f"http://127.0.0.1:{self.ports[worker]}/stub"

    def change(self, workers: Iterable[str], **settings: Any) -> None:
        """Change the settings of these engines while they run."""
        for worker in workers:
            httpx.post(self.stub(worker), json=settings, timeout=BOUND_S).raise_for_status()

    def kill_engine(self, worker: str) -> None:
        (pid,) = pids_of(self.ports[worker])
        os.kill(pid, signal.SIGKILL)


def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(builtin_dir("builtin:herma-tiny") / "tokenizer.json"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """vLLM and llama.cpp serve one model; another vLLM makes a tool call."""
    folder = tmp_path_factory.mktemp("foreign")
    first = free_ports(3)
    call = _tokenizer().encode(CALL, add_special_tokens=False).ids
    text = FLEET.format(folder=folder)
    ports: dict[str, str] = {}
    settings: dict[str, dict[str, Any]] = {
        "v": {"kind": "vllm", "token_ms": 10, "cached": 4},
        "l": {"kind": "llama-cpp", "token_ms": 10, "skips": True},
        "s": {"kind": "vllm", "answer": call, "cached": 5},
    }
    for at, (name, one) in enumerate(settings.items()):
        ports[name] = str(first + at)
        argv = json.dumps(stub_argv(ports[name], **one))
        serves = "scripted" if name == "s" else "m"
        text += WORKER.format(
            name=name, serves=serves, kind=one["kind"], port=ports[name], argv=argv
        )
    config = folder / "herma.toml"
    config.write_text(text)
    with herma_up(config) as herma:
        herma.wait_models_ready({"m": 2, "scripted": 1})
        yield Fleet(herma, ports)


def _body(**fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "Tell me a story."}
    return {"model": "m", "messages": [message], "temperature": 0, **fields}


def _story(client: httpx.Client, num: int) -> str:
    """What the stubs' model says, from the ids that the gateway itself would send."""
    prompt = client.post("/tokenize", json={"model": "m", "messages": _body()["messages"]}).json()[
        "tokens"
    ]
    ids = list(prompt)
    for _ in range(num):
        ids.append(next_id(ids, []))
    return str(_tokenizer().decode(ids[len(prompt) :], skip_special_tokens=True))


def test_chat_whole_and_streamed(fleet: Fleet) -> None:
    """A chat has the same text whole and streamed, and an exact usage; several at once, on both
    engines.
    """
    with fleet.client() as client:
        story = _story(client, 40)
        whole = client.post("/chat/completions", json=_body(max_tokens=40))
        assert whole.status_code == 200, whole.text
        answer = whole.json()
        assert answer["choices"][0]["message"]["content"] == story
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 40
        assert _streamed(client, 40)[0] == answer["choices"][0]["message"]["content"]


def _ignore(_: int) -> None:
    """Drop the chunks."""


def _streamed(
    client: httpx.Client, num: int, on_chunk: Callable[[int], None] = _ignore
) -> tuple[str, Any]:
    """The text and the usage of a streamed answer of `num` tokens."""
    body = _body(max_tokens=num, stream=True, stream_options={"include_usage": True})
    text, usage, count = "", None, 0
    with client.stream("POST", "/chat/completions", json=body) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                count += 1
                on_chunk(count)
    return text, usage


def test_tools_usage_and_cached_tokens(fleet: Fleet) -> None:
    """A tool call is parsed as our own engine's would be; cached tokens are the engine's own,
    though vLLM tells them only after the last token.
    """
    with fleet.client() as client:
        body = _body(model="scripted", tools=WEATHER, max_tokens=200)
        answer = client.post("/chat/completions", json=body).json()
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        call = choice["message"]["tool_calls"][0]["function"]
        assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Athens"})
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 5


@pytest.mark.parametrize("victim", ["v", "l"])
def test_a_killed_engine_costs_no_byte(fleet: Fleet, victim: str) -> None:
    """kill -9 in mid-stream: the stream goes on at the engine of another kind, as it would have.
    The engines hold back the rest of the answer until one is dead.
    """
    with fleet.client() as client:
        undisturbed, _ = _streamed(client, 120)
        other = "l" if victim == "v" else "v"
        killed: list[str] = []

        def kill(count: int) -> None:
            # The first chunk has no token: the engine may not have the sequence yet.
            if count == 5:
                killed.append(_kill_serving(fleet, (victim, other)))
                fleet.change({*fleet.pair} - {*killed}, hold_after=None)

        fleet.change(fleet.pair, hold_after=20)
        resumed, usage = _streamed(client, 120, kill)
        assert killed
        assert resumed == undisturbed
        assert usage["completion_tokens"] == 120
    fleet.herma.wait_models_ready({"m": 2})


def _kill_serving(fleet: Fleet, names: tuple[str, ...]) -> str:
    """Kill the engine that has a sequence. None has for a moment where the stream has just moved,
    as it does from an engine whose probes a loaded machine lets wait.
    """

    def serving() -> list[str]:
        return [name for name in names if _is_running(fleet.stub(name))]

    (name, *_) = wait_until(serving, "an engine that runs the stream", timeout_s=BOUND_S)
    fleet.kill_engine(name)
    return name


def _is_running(stub: str) -> bool:
    try:
        return bool(httpx.get(stub, timeout=BOUND_S).json()["running"])
    except httpx.TransportError:  # it starts again
        return False
