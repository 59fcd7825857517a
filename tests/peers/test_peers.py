"""Servers of others, unmodified, between two gateways: Herma attaches to them, and they to Herma.

`make test-peers` installs them; one that is not installed is skipped. Behind LiteLLM, SMG and
vllm-router stands a Herma whose engine gives scripted answers; dynamo has its own mocker.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.evaluation.install import command_of
from tests.fakes.checked_http import checked_client
from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.ports import free_ports
from tests.peers.install import PROGRAMS
from workers.model_dir import builtin_dir

pytestmark = pytest.mark.slow

FOLDER: Final = Path(os.environ.get("HERMA_PEERS_DIR", ""))
START_S: Final = 240.0
BOUND_S: Final = 120.0
POLLED_S: Final = 20.0
"""A gateway asks for the health of an engine each second."""
KEY: Final = "sk-peer"

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
model = "tiny"
serves = "m"
url = "http://127.0.0.1:{port}"
api_key_env = "PEER_KEY"
context_length = 2048
probe_context = 0
"""

LITELLM = """
model_list:
  - model_name: tiny
    litellm_params: {{model: openai/tiny, api_base: "{origin}/v1", api_key: none}}
general_settings: {{master_key: {key}}}
"""
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


class Peers:
    """A gateway in front of one peer. `num_tokens` counts what was generated behind the peer."""

    def __init__(self, name: str, front: HermaProcess, num_tokens: Callable[[], float]) -> None:
        self.name = name
        self.front = front
        self.num_tokens = num_tokens

    def client(self) -> httpx.Client:
        """A client that checks streams as ours: not LiteLLM's, which keep the ids of the gateway
        behind it, but have the usage in a chunk with choices. They pass unchanged.
        """
        if self.name == "litellm":
            return httpx.Client(base_url=self.front.base_url, timeout=BOUND_S)
        return checked_client(self.front.base_url, timeout_s=BOUND_S)


@contextmanager
def _running(argv: list[str], folder: Path, name: str, **environ: str) -> Iterator[None]:
    """A process of a peer, with a log in `folder`."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            argv, cwd=folder, stdout=log, stderr=log, env={**os.environ, **environ}
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(port: int) -> bool:
    """Whether a peer answers a chat."""
    try:
        reply = httpx.post(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            headers={"authorization": f"Bearer {KEY}"},
            json={"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]},
            timeout=20,
        )
    except httpx.HTTPError:
        return False
    return reply.status_code == 200


def _wait_started(name: str, port: int) -> None:
    """Return once the peer answers. One that need not run is skipped if it does not."""
    try:
        wait_until(lambda: _answers(port), f"an answer of {name}", timeout_s=START_S)
    except AssertionError:
        if next(program.must for program in PROGRAMS if program.name == name):
            raise
        pytest.skip(f"{name} is installed, and answered no chat in {START_S:g} s")


def _sum_of(url: str, name: str) -> float:
    """The sum of the samples of a metric."""
    lines = httpx.get(f"{url}/metrics", timeout=BOUND_S).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def _argv(name: str, command: str, origin: str, port: int, folder: Path) -> list[str]:
    """The command line of a peer before the server at `origin`."""
    at = ["--host", "127.0.0.1", "--port", str(port)]
    if name == "litellm":
        (folder / "litellm.yaml").write_text(LITELLM.format(origin=origin, key=KEY))
        return [command, "--config", "litellm.yaml", *at]
    more = ["--worker-urls", origin, "--prometheus-port", str(free_ports(1))]
    return [command, *(["launch"] if name == "smg" else []), *at, *more]


def _start_dynamo(stack: ExitStack, python: str, port: int, folder: Path) -> None:
    environ = {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(folder / "kv"),
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
    }
    at = ["--http-host", "127.0.0.1", "--http-port", str(port)]
    model = ["--model-path", str(builtin_dir("builtin:herma-tiny")), "--model-name", "tiny"]
    mocker = [python, "-m", "dynamo.mocker", *model, "--max-model-len", "2048"]
    stack.enter_context(_running(mocker, folder, "mocker", **environ))
    frontend = [python, "-m", "dynamo.frontend", *at]
    stack.enter_context(_running(frontend, folder, "frontend", **environ))


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HermaProcess]:
    """The gateway behind the peers."""
    folder = tmp_path_factory.mktemp("origin")
    (folder / "answers.toml").write_text(ANSWERS.format())
    config = folder / "herma.toml"
    config.write_text(ORIGIN.format(folder=folder))
    with herma_up(config) as herma:
        herma.wait_models_ready({"tiny": 1})
        yield herma


@pytest.fixture(scope="module", params=[program.name for program in PROGRAMS])
def peers(
    request: pytest.FixtureRequest,
    origin: HermaProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Peers]:
    """The gateway in front of one of them."""
    name: str = request.param
    command = command_of(FOLDER, name, PROGRAMS)
    if command is None:
        pytest.skip(f"{name} is not installed: run `make test-peers`")
    folder, port = tmp_path_factory.mktemp(name), free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        if name == "dynamo":
            _start_dynamo(stack, str(command.with_name("python")), port, folder)
            num_tokens = lambda: _sum_of(url, "dynamo_frontend_requests_total")  # noqa: E731
        else:
            argv = _argv(name, str(command), origin.root_url, port, folder)
            local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
            stack.enter_context(_running(argv, folder, name, **local))
            num_tokens = lambda: _sum_of(origin.root_url, "herma_tokens")  # noqa: E731
        _wait_started(name, port)
        config = folder / "herma.toml"
        config.write_text(FRONT.format(folder=folder, port=port))
        front = stack.enter_context(herma_up(config, PEER_KEY=KEY))
        front.wait_models_ready({"m": 1})
        yield Peers(name, front, num_tokens)


def _body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def test_a_stream(peers: Peers) -> None:
    """Whole, with its end and its usage, and the same as in one piece."""
    asked = _body("Hi", max_tokens=16, temperature=0)
    text, usage = "", None
    more = {"stream": True, "stream_options": {"include_usage": True}}
    with (
        peers.client() as client,
        client.stream("POST", "/chat/completions", json={**asked, **more}) as reply,
    ):
        assert reply.status_code == 200
        lines = list(reply.iter_lines())
    for line in lines:
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            text += "".join(one["delta"].get("content") or "" for one in event["choices"])
    assert "data: [DONE]" in lines
    assert usage is not None
    if peers.name == "dynamo":
        assert text  # its mocker draws tokens
    else:
        assert text == "one two three four five"


def test_tools(peers: Peers) -> None:
    """A call comes as one, streamed and in one piece, at Messages too."""
    if peers.name == "dynamo":
        pytest.skip("its mocker draws tokens, and calls nothing")
    with peers.client() as client:
        asked = _body("What is the weather?", tools=[WEATHER])
        answer = client.post("/chat/completions", json=asked).json()
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Athens"}
        tool = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
        asked = _body("What is the weather?", tools=[tool], max_tokens=64)
        answer = client.post("/messages", json=asked).json()
        assert answer["stop_reason"] == "tool_use"
        (use,) = [part for part in answer["content"] if part["type"] == "tool_use"]
        assert use["input"] == {"city": "Athens"}


def test_a_client_that_leaves(peers: Peers, origin: HermaProcess) -> None:
    """What runs behind the peer ends long before its answer would."""
    asked = _body("A long one", max_tokens=600, stream=True)
    with (
        httpx.Client(base_url=peers.front.base_url, timeout=BOUND_S) as client,
        client.stream("POST", "/chat/completions", json=asked) as reply,
    ):
        lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
        for _ in range(3):
            next(lines)
    if peers.name == "dynamo":
        return
    running = lambda: _sum_of(origin.root_url, "herma_requests_in_flight")  # noqa: E731
    wait_until(lambda: running() <= 1, "the end of the work", timeout_s=30)


def test_health_costs_nothing(peers: Peers) -> None:
    """The gateway polls the peer each second; nothing is generated for that."""
    before = peers.num_tokens()
    time.sleep(POLLED_S)
    assert peers.num_tokens() == before
