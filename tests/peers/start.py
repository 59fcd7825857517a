"""Starts servers of others on loopback, each with a model to answer from.

Owns their command lines, and how each tells what it generated and whether it still works. Must not
know what is asked through them.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from tests.fakes.ports import free_ports
from workers.model_dir import builtin_dir

KEY: Final = "sk-peer"
BOUND_S: Final = 120.0
PROBE_S: Final = 5.0
CONTEXT: Final = 16_384
TINY: Final = builtin_dir("builtin:herma-tiny")
END_OF_TURN: Final = "4089"
"""The token of the built-in model that ends an answer."""
ENDLESS: Final = {"max_tokens": 12_000, "logit_bias": {END_OF_TURN: -100.0}}
"""An answer that takes minutes."""
ROOT: Final = Path(__file__).parents[2]

LITELLM: Final = """
model_list:
  - model_name: tiny
    litellm_params: {{model: openai/tiny, api_base: "{origin}/v1", api_key: none}}
general_settings: {{master_key: {key}}}
"""


@dataclass(frozen=True)
class Peer:
    """A server of others that runs. `num_generated` grows with what was generated behind it, and
    `is_idle` tells whether nothing is. `long` are the fields of a request whose answer takes far
    longer than a test waits. One that `draws` answers tokens by chance. `call` are the fields of a
    request for a call.
    """

    name: str
    url: str
    num_generated: Callable[[], float]
    is_idle: Callable[[], bool]
    model: str = "tiny"
    long: dict[str, Any] = field(default_factory=lambda: {"max_tokens": 600})
    draws: bool = False
    call: dict[str, Any] = field(default_factory=dict)

    def answers(self, timeout_s: float = BOUND_S) -> bool:
        """Whether it answers a chat."""
        try:
            reply = httpx.post(
                f"{self.url}/v1/chat/completions",
                headers={"authorization": f"Bearer {KEY}"},
                json={
                    "model": self.model,
                    "messages": [{"role": "user", "content": "Hi"}],
                    "max_tokens": 1,
                },
                timeout=timeout_s,
            )
        except httpx.HTTPError:
            return False
        return reply.status_code == 200


def start_peer(
    name: str, command: Path, origin: Callable[[], str], folder: Path, stack: ExitStack
) -> Peer:
    """Start a peer, whose files go to `folder` and whose processes end with `stack`. `origin`
    starts the gateway behind those that have no model, and returns its address.
    """
    port = free_ports(1)
    if name == "llama-server":
        return _llama_server(command, port, folder, stack)
    if name == "transformers":
        return _transformers(command, port, folder, stack)
    if name == "dynamo":
        return _dynamo(command, port, folder, stack)
    return _before_a_gateway(name, command, port, origin(), folder, stack)


def sum_of(url: str, name: str) -> float:
    """The sum of the samples of a metric."""
    lines = httpx.get(f"{url}/metrics", timeout=BOUND_S).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


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


def _before_a_gateway(
    name: str, command: Path, port: int, origin: str, folder: Path, stack: ExitStack
) -> Peer:
    at = ["--host", "127.0.0.1", "--port", str(port)]
    if name == "litellm":
        (folder / "litellm.yaml").write_text(LITELLM.format(origin=origin, key=KEY))
        argv = [str(command), "--config", "litellm.yaml", *at]
    else:
        start = ["launch"] if name == "smg" else []
        more = ["--worker-urls", origin, "--prometheus-port", str(free_ports(1))]
        argv = [str(command), *start, *at, *more]
    stack.enter_context(_running(argv, folder, name, LITELLM_LOCAL_MODEL_COST_MAP="True"))
    return Peer(
        name,
        f"http://127.0.0.1:{port}",
        num_generated=lambda: sum_of(origin, "herma_tokens"),
        is_idle=lambda: sum_of(origin, "herma_requests_in_flight") == 0,
    )


def _llama_server(command: Path, port: int, folder: Path, stack: ExitStack) -> Peer:
    """With the built-in model, which `tests.engines.gguf_of` writes as GGUF.

    A call is required of it: this build (86a2835) is not stable in all of its modes.
    """
    gguf = folder / "tiny.gguf"
    path = f"{ROOT}:{os.environ['GGUF_PATH']}"
    subprocess.run(
        [sys.executable, "-m", "tests.engines.gguf_of", str(TINY), str(gguf)],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    argv = [str(command), "-m", str(gguf), "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--jinja", "--chat-template-file", str(TINY / "chat_template.jinja"), "--metrics"]
    # One thread: its threads wait for each other by spinning, which a shared machine punishes.
    argv += ["-c", str(2 * CONTEXT), "-np", "2", "-t", "1", "-tb", "1"]
    stack.enter_context(_running(argv, folder, "llama-server"))
    url = f"http://127.0.0.1:{port}"
    return Peer(
        "llama-server",
        url,
        num_generated=lambda: sum_of(url, "llamacpp:tokens_predicted_total"),
        is_idle=lambda: sum_of(url, "llamacpp:requests_processing") == 0,
        long=ENDLESS,
        call={"tool_choice": "required"},
    )


def _transformers(command: Path, port: int, folder: Path, stack: ExitStack) -> Peer:
    """`transformers serve` with the built-in model. It has no metrics: its log has a line for each
    request, and it generates for one after the other, so that it answers while it is idle.
    """
    argv = [str(command), "serve", str(TINY), "--device", "cpu", "--log-level", "info"]
    argv += ["--host", "127.0.0.1", "--port", str(port)]
    environ = {"PYTHONPATH": os.environ["SERVING_PATH"], "HF_HUB_CACHE": str(folder / "hub")}
    stack.enter_context(_running(argv, folder, "transformers", HF_HUB_OFFLINE="1", **environ))
    log = folder / "transformers.log"
    peer = Peer(
        "transformers",
        f"http://127.0.0.1:{port}",
        num_generated=lambda: log.read_text(errors="replace").count("[Request received]"),
        is_idle=lambda: peer.answers(PROBE_S),
        model=str(TINY),
        long=ENDLESS,
    )
    return peer


def _dynamo(command: Path, port: int, folder: Path, stack: ExitStack) -> Peer:
    """Its frontend and its mocker, which find each other through files.

    The mocker must have a port of its own: the frontend reads the tokenizer from there, and
    otherwise asks a hub for a model of this name. The response stream wants an interface's name.
    """
    own_port = free_ports(1)
    environ = {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(folder / "kv"),
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": "lo",
        "HF_HUB_OFFLINE": "1",
        "HOME": str(folder),
    }
    python = str(command.with_name("python"))
    mocker = [python, "-m", "dynamo.mocker", "--model-path", str(TINY), "--model-name", "tiny"]
    mocker += ["--max-model-len", str(CONTEXT)]
    own = {"DYN_SYSTEM_HOST": "127.0.0.1", "DYN_SYSTEM_PORT": str(own_port)}
    stack.enter_context(_running(mocker, folder, "mocker", **environ, **own))
    frontend = [python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1"]
    frontend += ["--http-port", str(port)]
    stack.enter_context(_running(frontend, folder, "frontend", **environ))
    url, mocker_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{own_port}"
    return Peer(
        "dynamo",
        url,
        num_generated=lambda: sum_of(url, "dynamo_frontend_requests_total"),
        is_idle=lambda: sum_of(mocker_url, "dynamo_component_inflight_requests") == 0,
        long={"max_tokens": 12_000},
        draws=True,
    )
