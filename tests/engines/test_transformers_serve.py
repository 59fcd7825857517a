"""`transformers serve` with the built-in model on a CPU, as a text-level worker.

`make test-engines` installs what it needs; SERVING_PATH names that folder.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.checked_http import checked_client
from tests.fakes.herma_process import herma_up
from tests.fakes.ports import free_ports
from workers.model_dir import builtin_dir

pytestmark = pytest.mark.slow

SERVING = os.environ.get("SERVING_PATH", "")
BOUND_S = 180.0

FLEET = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "theirs"

[[workers]]
name = "t"
serves = "theirs"
engine = "openai"
model = "{model}"
url = "http://127.0.0.1:{port}"
context_length = 2048
max_seqs = 4
probe_context = 256
refused_fields = ["prompt_cache_key", "session_id"]
launch = {{ argv = {argv}, env = {{ PYTHONPATH = "{serving}", HF_HUB_CACHE = "{folder}" }} }}
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A gateway in front of it."""
    if not SERVING:
        pytest.skip("SERVING_PATH is not set: run `make test-engines`")
    folder, port = tmp_path_factory.mktemp("serve"), free_ports(1)
    model = str(builtin_dir("builtin:herma-tiny"))
    program = str(Path(sys.executable).with_name("transformers"))
    argv = [program, "serve", model, "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
    config = folder / "herma.toml"
    config.write_text(
        FLEET.format(folder=folder, model=model, port=port, argv=json.dumps(argv), serving=SERVING)
    )
    with herma_up(config) as herma:
        herma.wait_models_ready({"theirs": 1})
        with checked_client(herma.base_url, timeout_s=BOUND_S) as client:
            yield client


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello! Who are you?"}]
    return {"model": "theirs", "messages": messages, "temperature": 0, "max_tokens": 24, **fields}


def test_chat_and_usage(client: httpx.Client) -> None:
    """A chat has the server's answer and counts; a field that the server refuses is left out."""
    reply = client.post("/chat/completions", json=body(prompt_cache_key="x"))
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    assert answer["choices"][0]["message"]["content"].strip()
    usage = answer["usage"]
    assert usage["completion_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_stream_says_the_same(client: httpx.Client) -> None:
    """A stream has the text of the whole answer, and ends with a `[DONE]` that the server does not
    send.
    """
    whole = client.post("/chat/completions", json=body()).json()
    text, usage, is_done = "", None, False
    asked = body(stream=True, stream_options={"include_usage": True})
    with client.stream("POST", "/chat/completions", json=asked) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            is_done = is_done or line == "data: [DONE]"
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert "error" not in event, event
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
    assert text == whole["choices"][0]["message"]["content"]
    assert usage == whole["usage"]
    assert is_done


def test_messages_over_its_chats(client: httpx.Client) -> None:
    """Anthropic's API, translated here."""
    asked = {"model": "theirs", "max_tokens": 16, "messages": body()["messages"]}
    answer = client.post("/messages", json=asked).json()
    assert answer["content"][0]["text"].strip()
    assert answer["usage"]["output_tokens"] > 0
