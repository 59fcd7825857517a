"""Servers of others, unmodified, between two gateways: Herma attaches to them, and they to Herma.

`make test-peers` installs them; one that is not installed is skipped. Behind LiteLLM, SMG and
vllm-router stands a Herma whose engine gives scripted answers; llama-server and
`transformers serve` have the built-in model, and dynamo has its own mocker.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest

from tests.evaluation.install import command_of
from tests.fakes.checked_http import checked_client
from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.peers.install import PROGRAMS
from tests.peers.start import BOUND_S, CONTEXT, KEY, Peer, start_peer

pytestmark = pytest.mark.slow

FOLDER: Final = Path(os.environ.get("HERMA_PEERS_DIR", ""))
NAMES: Final = (*(program.name for program in PROGRAMS), "transformers")
MUST: Final = {"transformers", *(program.name for program in PROGRAMS if program.must)}
START_S: Final = 240.0
POLLED_S: Final = 20.0
"""A gateway asks for the health of an engine each second."""

ORIGIN = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/origin"

[[models]]
name = "tiny"

[[workers]]
name = "o"
model = "builtin:herma-tiny"
serves = "tiny"
engine = "scripted"
script = "{folder}/answers.toml"
"""

ANSWERS = """
[[rules]]
contains = "weather"
answer = '''
<tool_call>
{{"name": "get_weather", "arguments": {{"city": "Athens"}}}}
</tool_call>'''

[[rules]]
contains = "long"
token_ms = 100
finish = "length"
answer = "and so on "

[[rules]]
answer = "one two three four five"
"""

FRONT = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/front"

[[models]]
name = "m"

[[workers]]
name = "w"
engine = "openai"
model = "{model}"
serves = "m"
url = "{url}"
api_key_env = "PEER_KEY"
context_length = {context}
probe_context = 0
"""
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


class Peers(NamedTuple):
    """A gateway in front of one peer."""

    peer: Peer
    front: HermaProcess

    def client(self) -> httpx.Client:
        """A client that checks streams by what OpenAI's say, where the peer's are so. They pass
        unchanged: LiteLLM has the usage in a chunk with choices, dynamo the role in each chunk,
        and others a thought under one name, where our own engines use both.
        """
        if self.peer.name in {"smg", "vllm-router"}:
            return checked_client(self.front.base_url, timeout_s=BOUND_S)
        return httpx.Client(base_url=self.front.base_url, timeout=BOUND_S)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """Starts the gateway behind the peers at the first call, and gives its address."""
    folder, started = tmp_path_factory.mktemp("origin"), []

    def url() -> str:
        if not started:
            (folder / "answers.toml").write_text(ANSWERS.format())
            config = folder / "herma.toml"
            config.write_text(ORIGIN.format(folder=folder))
            herma = stack.enter_context(herma_up(config))
            herma.wait_models_ready({"tiny": 1})
            started.append(herma.root_url)
        return started[0]

    with ExitStack() as stack:
        yield url


def _command(name: str) -> Path | None:
    """The command of an installed peer."""
    if name == "transformers":
        program = Path(sys.executable).with_name(name)
        return program if os.environ.get("SERVING_PATH") else None
    return command_of(FOLDER, name, PROGRAMS)


@pytest.fixture(scope="module", params=NAMES)
def peers(
    request: pytest.FixtureRequest,
    origin: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Peers]:
    """The gateway in front of one of them. One that need not run is skipped if it does not."""
    name: str = request.param
    command = _command(name)
    if command is None:
        pytest.skip(f"{name} is not installed: run `make test-peers`")
    folder = tmp_path_factory.mktemp(name)
    with ExitStack() as stack:
        peer = start_peer(name, command, origin, folder, stack)
        try:
            wait_until(peer.answers, f"an answer of {name}", timeout_s=START_S)
        except AssertionError:
            if name in MUST:
                raise
            pytest.skip(f"{name} is installed, and answered no chat in {START_S:g} s")
        config = folder / "herma.toml"
        config.write_text(
            FRONT.format(folder=folder, url=peer.url, model=peer.model, context=CONTEXT)
        )
        front = stack.enter_context(herma_up(config, PEER_KEY=KEY))
        front.wait_models_ready({"m": 1})
        yield Peers(peer, front)


def _body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def test_a_stream(peers: Peers) -> None:
    """Whole, with its end and its usage, and the same as in one piece."""
    asked = _body("Hi", max_tokens=16, temperature=0)
    text, usage = "", None
    more = {"stream": True, "stream_options": {"include_usage": True}}
    with peers.client() as client:
        whole = client.post("/chat/completions", json=asked).json()
        with client.stream("POST", "/chat/completions", json={**asked, **more}) as reply:
            assert reply.status_code == 200
            lines = list(reply.iter_lines())
    for line in lines:
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            text += "".join(one["delta"].get("content") or "" for one in event["choices"])
    assert "data: [DONE]" in lines
    assert usage is not None
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"] > 0
    assert text
    if not peers.peer.draws:
        assert text == whole["choices"][0]["message"]["content"]


def test_tools(peers: Peers) -> None:
    """A call comes as one, in one piece and streamed, at Messages too."""
    if peers.peer.draws:
        pytest.skip(f"{peers.peer.name} draws tokens, and calls nothing")
    question = "What is the weather in Athens?"
    asked = _body(question, tools=[WEATHER], max_tokens=200, temperature=0)
    with peers.client() as client:
        chat = asked | peers.peer.call
        answer = client.post("/chat/completions", json=chat).json()
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        _check_call(call["function"]["name"], call["function"]["arguments"])
        _check_call(*_streamed_call(client, chat))
        function: dict[str, Any] = WEATHER["function"]  # type: ignore[assignment]
        tool = {**function, "input_schema": function["parameters"]}
        del tool["parameters"]
        choice = {"tool_choice": {"type": "any"}} if peers.peer.call else {}
        answer = client.post("/messages", json=asked | {"tools": [tool]} | choice).json()
        assert answer["stop_reason"] == "tool_use"
        (use,) = [part for part in answer["content"] if part["type"] == "tool_use"]
        _check_call(use["name"], json.dumps(use["input"]))


def _streamed_call(client: httpx.Client, asked: dict[str, Any]) -> tuple[str, str]:
    """The name and the arguments of the one call of a stream."""
    name, arguments, ids, end = "", "", set(), None
    with client.stream("POST", "/chat/completions", json=asked | {"stream": True}) as reply:
        events = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {")]
    for choice in [choice for event in events for choice in event["choices"]]:
        end = choice.get("finish_reason") or end
        for call in choice["delta"].get("tool_calls") or []:
            ids |= {call["id"]} if call.get("id") else set()
            name += call["function"].get("name") or ""
            arguments += call["function"].get("arguments") or ""
    assert (len(ids), end) == (1, "tool_calls")
    return name, arguments


def _check_call(name: str, arguments: str) -> None:
    assert (name, json.loads(arguments)) == ("get_weather", {"city": "Athens"})


def test_what_a_model_lacks_is_no_failure_of_its_server(peers: Peers) -> None:
    """llama-server says 500 to a picture and 501 to embeddings; the client reads what is wrong, and
    the chats of others go on.
    """
    if peers.peer.name != "llama-server":
        pytest.skip("the others pass pictures on, or ignore them")
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    with peers.client() as client:
        for text in ("What is this?", "And this?", "And that?", "Anything?"):
            content = [{"type": "text", "text": text}, picture]
            asked = _body(text) | {"messages": [{"role": "user", "content": content}]}
            reply = client.post("/chat/completions", json=asked)
            code = reply.json()["error"]["code"]
            assert (reply.status_code, code) == (400, "unsupported_content_part")
        reply = client.post("/embeddings", json={"model": "m", "input": "Hi"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "path_not_served")
    samples = peers.front.metrics()
    assert samples['herma_workers{model="m",state="ready"}'] == 1


def test_a_client_that_leaves(peers: Peers) -> None:
    """What runs behind the peer ends long before its answer would."""
    wait_until(peers.peer.is_idle, "a peer at rest", timeout_s=BOUND_S)
    asked = _body("A long one", stream=True, **peers.peer.long)
    with (
        httpx.Client(base_url=peers.front.base_url, timeout=BOUND_S) as client,
        client.stream("POST", "/chat/completions", json=asked) as reply,
    ):
        lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
        for _ in range(3):
            next(lines)
        assert not peers.peer.is_idle()
    wait_until(peers.peer.is_idle, "the end of the work", timeout_s=30)


def test_health_costs_nothing(peers: Peers) -> None:
    """The gateway polls the peer each second; nothing is generated for that."""
    before = peers.peer.num_generated()
    time.sleep(POLLED_S)
    assert peers.peer.num_generated() == before > 0
