"""A broken model and garbage on the worker port: one clear line, and nothing is lost for others."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import zmq

from tests.fakes.checked_http import checked_client
from tests.fakes.herma_process import HermaProcess, herma_up, wait_until
from tests.fakes.ports import free_ports
from tests.fakes.text_files import make_text_files
from tests.fakes.tiny_models import write_tiny_model

GARBAGE_BYTES = 4096

FLEET = """
[gateway]
port = 0
worker_bind = "tcp://127.0.0.1:{port}"
insecure_local = true
resume_wait_s = 1.0

[[models]]
name = "good"

[[models]]
name = "broken"

[[workers]]
name = "g1"
model = "builtin:herma-tiny"
engine = "synthetic"
step_ms = 5
serves = "good"

[[workers]]
name = "b1"
model = "{broken}"
serves = "broken"
"""


@pytest.fixture(scope="module")
def worker_port() -> int:
    return free_ports(1)


@pytest.fixture(scope="module")
def fleet(worker_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HermaProcess]:
    """A good worker, and one whose model directory lacks a shard."""
    folder: Path = tmp_path_factory.mktemp("bad")
    broken = write_tiny_model(folder / "model", shards=2)
    for name, content in make_text_files().items():
        (broken / name).write_bytes(content)
    next(iter(sorted(broken.glob("*-of-*.safetensors")))).unlink()
    config = folder / "herma.toml"
    config.write_text(FLEET.format(port=worker_port, broken=broken))
    with herma_up(config) as herma:
        yield herma


def test_a_missing_shard_is_one_clear_line(fleet: HermaProcess) -> None:
    """The log names the file and the remedy without a traceback; the model is 503, others work."""

    def told() -> list[str]:
        return [line for line in fleet.output if "stopped after" in line]

    line = wait_until(told, "the diagnosis")[0]
    assert "00001-of-00002.safetensors does not exist" in line
    assert not [line for line in fleet.output if "Traceback" in line]
    refused = _ask(fleet, "broken")
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    assert "safetensors" not in refused.text
    assert _ask(fleet, "good").status_code == 200


def test_garbage_on_the_worker_port_hurts_nobody(fleet: HermaProcess, worker_port: int) -> None:
    """Strangers on TCP and peers that speak ZeroMQ but no message of ours are shut out while a
    stream goes on to its end.
    """
    body = _body("good", max_tokens=300, stream=True, ignore_eos=True)
    with (
        checked_client(fleet.base_url) as client,
        client.stream("POST", "/chat/completions", json=body) as reply,
    ):
        lines = reply.iter_lines()
        next(lines)
        with socket.create_connection(("127.0.0.1", worker_port)) as stranger:
            stranger.sendall(os.urandom(GARBAGE_BYTES))
        _send_frames(worker_port, [b"", b"\xff", os.urandom(GARBAGE_BYTES), b"\x92\x20"])
        rest = list(lines)
    assert rest[-2] == "data: [DONE]"
    assert not [line for line in rest if '"error":' in line]
    wait_until(lambda: fleet.metrics()["herma_frames_garbage_total"] > 0, "counted garbage")
    assert _ask(fleet, "good").status_code == 200


def _send_frames(port: int, frames: list[bytes]) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.ROUTING_ID, bytes([7]) * 16)
        dealer.connect(f"tcp://127.0.0.1:{port}")
        for frame in frames:
            dealer.send(frame)


def _ask(fleet: HermaProcess, model: str) -> httpx.Response:
    body = _body(model, max_tokens=4)
    return httpx.post(f"{fleet.base_url}/chat/completions", json=body, timeout=60)


def _body(model: str, **fields: object) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": "Hello?"}], **fields}
