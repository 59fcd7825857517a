"""A real llama-server with the built-in model behind a real gateway, beside our own engine.

`make test-engines` builds the server and writes the GGUF file; LLAMA_SERVER and TINY_GGUF name
them.
"""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.questions import QUESTIONS, TOOL
from tests.fakes.checked_http import checked_client
from tests.fakes.herma_process import herma_up
from tests.fakes.ports import free_ports

pytestmark = pytest.mark.slow

PROGRAM, GGUF = os.environ.get("LLAMA_SERVER", ""), os.environ.get("TINY_GGUF", "")
BOUND_S = 120.0
NUM_REQUESTS, AT_ONCE = 1000, 32

FLEET = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "theirs"

[[models]]
name = "ours"

[[workers]]
name = "l"
model = "builtin:herma-tiny"
serves = "theirs"
engine = "llama-cpp"
url = "http://127.0.0.1:{port}"
launch = {{ argv = {argv} }}

[[workers]]
name = "n"
model = "builtin:herma-tiny"
serves = "ours"
device = "cpu"
dtype = "float32"
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A gateway in front of both engines."""
    if not (PROGRAM and GGUF):
        pytest.skip("LLAMA_SERVER and TINY_GGUF are not set: run `make test-engines`")
    folder, port = tmp_path_factory.mktemp("llama"), free_ports(1)
    argv = [PROGRAM, "-m", GGUF, "--host", "127.0.0.1", "--port", str(port)]
    # One thread: its threads wait for each other by spinning, which a shared machine punishes.
    argv += ["-c", "32768", "-np", "4", "--metrics", "-t", "1", "-tb", "1"]
    config = Path(folder) / "herma.toml"
    config.write_text(FLEET.format(folder=folder, port=port, argv=json.dumps(argv)))
    with herma_up(config) as herma:
        herma.wait_models_ready({"theirs": 1, "ours": 1})
        with checked_client(herma.base_url, timeout_s=BOUND_S) as found:
            yield found


def _ask(client: httpx.Client, model: str, *messages: str, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    told = [{"role": roles[at % 2], "content": text} for at, text in enumerate(messages)]
    body = {"model": model, "messages": told, "temperature": 0, "max_tokens": 32, **fields}
    reply = client.post("/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def _text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def test_greedy_text_is_ours(client: httpx.Client) -> None:
    """Greedy text in f16 is that of our f32: the first 32 tokens are equal in 19 of 20 answers at
    least.
    """
    equal = [
        _text(_ask(client, "theirs", one)) == _text(_ask(client, "ours", one)) for one in QUESTIONS
    ]
    assert sum(equal) >= len(QUESTIONS) - 1


def test_a_stream_is_the_whole_answer(client: httpx.Client) -> None:
    """A stream has the text of the whole answer, and an exact usage."""
    whole = _ask(client, "theirs", QUESTIONS[2])
    body = {"model": "theirs", "messages": [{"role": "user", "content": QUESTIONS[2]}]}
    body |= {"temperature": 0, "max_tokens": 32, "stream": True}
    body["stream_options"] = {"include_usage": True}
    text, usage = "", None
    with client.stream("POST", "/chat/completions", json=body) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                text += "".join(one["delta"].get("content") or "" for one in event["choices"])
    assert text == _text(whole)
    assert usage is not None
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_the_second_turn_is_cached(client: httpx.Client) -> None:
    """The server's count of cached tokens reaches the usage of the second turn."""
    question = " ".join(QUESTIONS)
    answer = _text(_ask(client, "theirs", question))
    usage = _ask(client, "theirs", question, answer, "And then?")["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] // 2


def test_a_tool_call(client: httpx.Client) -> None:
    """The built-in model knows tools; the call is parsed as our engine's."""
    question = "What is the weather in Athens?"
    fields = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 100}
    theirs, ours = (_ask(client, model, question, **fields) for model in ("theirs", "ours"))
    (call,) = theirs["choices"][0]["message"]["tool_calls"]
    (own,) = ours["choices"][0]["message"]["tool_calls"]
    assert call["function"] == own["function"]


def test_schemas_and_choices_are_enforced(client: httpx.Client) -> None:
    """The engine itself enforces schemas and choices, streamed or not; a form that it has no field
    for is refused by name.
    """
    properties = {"city": {"type": "string", "maxLength": 20}, "large": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["city", "large"]}
    wanted = {"name": "x", "schema": schema, "strict": True}
    fields = {"response_format": {"type": "json_schema", "json_schema": wanted}, "max_tokens": 100}
    for question in QUESTIONS[:5]:
        answer = json.loads(_text(_ask(client, "theirs", question, **fields)))
        assert set(answer) == {"city", "large"}
    for question in QUESTIONS[:5]:
        text = _text(_ask(client, "theirs", question, guided_choice=["yes", "no"], max_tokens=300))
        assert text in {"yes", "no"}
    body = {"model": "theirs", "messages": [{"role": "user", "content": "Hello"}]}
    reply = client.post("/chat/completions", json=body | {"guided_regex": "a+"})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "grammar_not_served"


def test_a_thousand_requests(client: httpx.Client) -> None:
    """A thousand requests, 32 at once, end without an error."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        questions = [QUESTIONS[at % len(QUESTIONS)] for at in range(NUM_REQUESTS)]
        answers = list(pool.map(lambda one: _ask(client, "theirs", one, max_tokens=8), questions))
    assert all(answer["usage"]["completion_tokens"] > 0 for answer in answers)
