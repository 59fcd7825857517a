"""A real gateway in front of two servers of text, one of which dies within a stream."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx

from tests.fakes.checked_http import checked_client
from tests.fakes.foreign_process import pids_of, stub_argv
from tests.fakes.herma_process import herma_up
from tests.fakes.ports import free_ports
from tests.fakes.text_engine import answer_to

BOUND_S = 60.0
WORDS = 60

FLEET = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "m"
"""

WORKER = """
[[workers]]
name = "{name}"
model = "there"
serves = "m"
engine = "openai"
url = "http://127.0.0.1:{port}"
probe_context = 0
launch = {{ argv = {argv} }}
"""

MESSAGES = {"messages": [{"role": "user", "content": "hello"}]}
APIS = {
    "/chat/completions": {**MESSAGES, "max_tokens": WORDS},
    "/messages": {**MESSAGES, "max_tokens": WORDS},
    "/responses": {"input": "hello", "max_output_tokens": WORDS},
}


def _said(event: dict[str, Any]) -> str:
    """The text in one event of any API."""
    if "choices" in event:
        return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    delta = event.get("delta")
    return str(delta.get("text", "")) if isinstance(delta, dict) else ""


def test_a_killed_engine_s_stream_is_whole(tmp_path: Path) -> None:
    """Through three APIs the other engine says the rest, to the byte."""
    first = free_ports(2)
    text = FLEET.format(folder=tmp_path)
    for name, port in {"a": first, "b": first + 1}.items():
        argv = json.dumps(stub_argv(str(port), kind="openai", token_ms=20, prefills="asked"))
        text += WORKER.format(name=name, port=port, argv=argv)
    config = tmp_path / "herma.toml"
    config.write_text(text)
    with herma_up(config) as herma, checked_client(herma.base_url, timeout_s=BOUND_S) as client:
        for path in APIS:
            herma.wait_models_ready({"m": 2})
            assert _said_with_a_kill(client, path, (first, first + 1)) == answer_to("hello", WORDS)


def _said_with_a_kill(client: httpx.Client, path: str, ports: tuple[int, int]) -> str:
    """The text of a stream whose engine is killed in its middle."""
    said, is_killed = "", False
    body = {"model": "m", "stream": True, **APIS[path]}
    with client.stream("POST", path, json=body) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            assert not event.get("error"), event
            said += _said(event)
            if len(said) > 50 and not is_killed:
                is_killed = True
                _kill_busy(ports)
    assert is_killed
    return said


def _kill_busy(ports: tuple[int, int]) -> None:
    busy = next(at for at in ports if httpx.get(f"http://127.0.0.1:{at}/stub").json()["running"])
    (pid,) = pids_of(str(busy))
    os.kill(pid, signal.SIGKILL)
