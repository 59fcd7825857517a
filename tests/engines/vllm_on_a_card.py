"""`python -m tests.engines.vllm_on_a_card --vllm-path P`: a real vLLM as a worker on a GPU.

Its answers are held against those of our own engine on the same card.

P is a folder with an unpacked vLLM, P/site its packages; without it the installed one is used.
`--shape tiny` is the built-in model (heads of 32), `--shape wide` a random one with heads of 128.
Prints a table and ends with 1 if a bar is missed. About 130 s, most of it vLLM's start.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any, Final

import httpx
import zmq

from tests.engines.questions import QUESTIONS, TOOL
from tests.fakes.checked_http import checked_client
from tests.fakes.herma_process import HermaProcess, herma_up
from tests.fakes.ports import free_ports
from workers.external.held_blocks import CopyReports, HeldBlocks, model_roots
from workers.external.vllm_feed import VllmFeed
from workers.model_dir import builtin_dir

BUILTIN: Final = "builtin:herma-tiny"
Row = tuple[str, str, bool]
"""What is looked at, the figure, and whether it holds."""

NUM_REQUESTS: Final = 200
AT_ONCE: Final = 32
BOUND_S: Final = 60.0

FLEET: Final = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "m"

[[workers]]
name = "w"
model = "{model}"
serves = "m"
max_seqs = 64
context_length = 2048
"""
OURS: Final = """
device = "{device}"
kv_tokens = 65536
"""
THEIRS: Final = """
engine = "vllm"
url = "http://127.0.0.1:{port}"
probe_context = 1500
device = "{device}"
kv_events = {{ url = "{events}", replay = "{replay}" }}

[workers.launch]
argv = {argv}
cwd = "{folder}"
env = {{ {env} }}
"""
_QUIET: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}


def make_wide(folder: Path) -> str:
    """A Qwen3 shape with heads of 128 and random weights, for the built-in tokenizer: 8 layers,
    0.1 B parameters. The head's rows are large, so that near ties are rare.
    """
    import torch
    from safetensors.torch import save_file

    source = builtin_dir(BUILTIN)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((source / "config.json").read_text())
    hidden, inner, layers, heads, kv_heads, size = 1024, 3072, 8, 16, 8, 128
    config |= {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
    config |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": size}
    (folder / "config.json").write_text(json.dumps(config))
    made = torch.Generator().manual_seed(1)

    def drawn(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=made) * gain * columns**-0.5
        return values.to(torch.bfloat16)

    def ones(count: int) -> torch.Tensor:
        return torch.ones(count, dtype=torch.bfloat16)

    tensors = {
        "model.embed_tokens.weight": drawn(config["vocab_size"], hidden, 3.0),
        "model.norm.weight": ones(hidden),
    }
    for at in range(layers):
        place, gain = f"model.layers.{at}.", (2 * layers) ** -0.5
        tensors |= {
            f"{place}input_layernorm.weight": ones(hidden),
            f"{place}post_attention_layernorm.weight": ones(hidden),
            f"{place}self_attn.q_proj.weight": drawn(heads * size, hidden),
            f"{place}self_attn.k_proj.weight": drawn(kv_heads * size, hidden),
            f"{place}self_attn.v_proj.weight": drawn(kv_heads * size, hidden),
            f"{place}self_attn.o_proj.weight": drawn(hidden, heads * size, gain),
            f"{place}self_attn.q_norm.weight": ones(size),
            f"{place}self_attn.k_norm.weight": ones(size),
            f"{place}mlp.gate_proj.weight": drawn(inner, hidden),
            f"{place}mlp.up_proj.weight": drawn(inner, hidden),
            f"{place}mlp.down_proj.weight": drawn(hidden, inner, gain),
        }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


class KvEvents:
    """vLLM's KV events through our decoder."""

    def __init__(self, endpoint: str) -> None:
        self.num_messages = 0
        self.held = HeldBlocks(
            model_roots("m"), block_size=32, max_blocks=100_000, copies=CopyReports.COUNTED
        )
        self.feed = VllmFeed(self.held, can_replay=False)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.connect(endpoint)
        self._socket.subscribe(b"")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._socket.close(0)
        self._context.term()

    def _run(self) -> None:
        while not self._is_over.is_set():
            if self._socket.poll(100):
                self.num_messages += 1
                self.feed.published(self._socket.recv_multipart())


def ask(client: httpx.Client, *messages: str, **fields: Any) -> dict[str, Any]:
    """A greedy chat of 32 tokens; the messages are the user's and the model's by turns."""
    roles = ("user", "assistant")
    told = [{"role": roles[at % 2], "content": text} for at, text in enumerate(messages)]
    body = {"model": "m", "messages": told, "temperature": 0, "max_tokens": 32, **fields}
    reply = client.post("/chat/completions", json=body)
    reply.raise_for_status()
    answer: dict[str, Any] = reply.json()
    return answer


def text_of(answer: dict[str, Any]) -> str:
    """Reasoning and content."""
    message = answer["choices"][0]["message"]
    return (message.get("reasoning_content") or "") + (message["content"] or "")


def streamed(client: httpx.Client, question: str) -> tuple[str, int]:
    """Text and tokens of a stream."""
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": question}]}
    body |= {"temperature": 0, "max_tokens": 32, "stream": True}
    body["stream_options"] = {"include_usage": True}
    text, num_tokens = "", 0
    with client.stream("POST", "/chat/completions", json=body) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
            for choice in event["choices"]:
                delta = choice["delta"]
                text += (delta.get("reasoning_content") or "") + (delta.get("content") or "")
    return text, num_tokens


def checks(
    client: httpx.Client, ours: list[str], *, has_tools: bool
) -> Iterator[tuple[str, str, bool]]:
    """The checks of the answers; `ours` are those of our engine to the same questions."""
    theirs = [ask(client, one) for one in QUESTIONS]
    equal = sum(text_of(one) == own for one, own in zip(theirs, ours, strict=True))
    yield "greedy text as ours, 32 tokens", f"{equal} of {len(ours)}", equal >= len(ours) - 1
    text, num_tokens = streamed(client, QUESTIONS[2])
    is_whole = text == text_of(theirs[2])
    is_counted = num_tokens == theirs[2]["usage"]["completion_tokens"]
    yield "a stream is the whole answer", str(is_whole), is_whole
    yield "its usage is exact", str(num_tokens), is_counted
    question = " ".join(QUESTIONS * 4)
    answer = text_of(ask(client, question)) or "Well."
    usage = ask(client, question, answer, "And then?")["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    figure = f"{cached} of {usage['prompt_tokens']}"
    yield "cached tokens on the second turn", figure, cached >= usage["prompt_tokens"] // 2
    if has_tools:
        fields = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 100}
        called = ask(client, "What is the weather in Athens?", **fields)
        calls = called["choices"][0]["message"].get("tool_calls") or [{}]
        name = calls[0].get("function", {}).get("name")
        yield "a tool call", str(name), name == "get_weather"
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = (QUESTIONS[at % len(QUESTIONS)] for at in range(NUM_REQUESTS))
        answers = list(pool.map(lambda one: ask(client, one, max_tokens=8), asked))
    took_s = time.monotonic() - began
    num_good = sum(one["usage"]["completion_tokens"] > 0 for one in answers)
    figure = f"{num_good} of {NUM_REQUESTS} in {took_s:.1f} s"
    yield f"requests at {AT_ONCE} at once", figure, num_good == NUM_REQUESTS


def kv_checks(client: httpx.Client, events: KvEvents) -> Iterator[Row]:
    """What the engine publishes, as we read it, and as the router uses it."""
    time.sleep(0.5)
    question = " ".join(QUESTIONS * 4)
    body = {"model": "m", "messages": [{"role": "user", "content": question}]}
    root = str(client.base_url).rstrip("/").removesuffix("/v1")
    preview = client.post(f"{root}/debug/route", json=body).json()
    known = max((one["cached_tokens"] for one in preview.get("candidates", ())), default=-1)
    yield "tokens of it that the router knows", str(known), known > 0
    yield "KV event messages", str(events.num_messages), events.num_messages > 0
    digests = len(events.held.snapshot().digests) // 16
    yield "blocks of ours that it holds", str(digests), digests > 0
    odd = {name: count for name, count in events.feed.oddities.items() if count}
    yield "oddities", f"{odd} {events.feed.last_fault}", not odd


def vllm_argv(model: str, port: int, events: str, replay: str) -> list[str]:
    """The command line of vLLM's own server, with memory in bytes: with a share of the card it
    counts what other programs take while it starts, and fails.
    """
    # It listens only where the host is a star.
    own = [address.replace("127.0.0.1", "*") for address in (events, replay)]
    config: dict[str, Any] = {"enable_kv_cache_events": True, "publisher": "zmq"}
    config |= {"endpoint": own[0], "replay_endpoint": own[1]}
    return [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
        "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port),
        "--max-model-len", "2048", "--max-num-seqs", "64",
        "--gpu-memory-utilization", "0.1", "--kv-cache-memory-bytes", str(4 << 30),
        "--enable-prompt-tokens-details", "--enable-prefix-caching",
        "--kv-events-config", json.dumps(config),
    ]  # fmt: skip


def started(folder: Path, name: str, text: str) -> AbstractContextManager[HermaProcess]:
    """`herma up` with that file."""
    config = folder / f"{name}.toml"
    config.write_text(text)
    return herma_up(config)


def run(arguments: argparse.Namespace, folder: Path) -> bool:
    """Whether every bar holds."""
    is_tiny = arguments.shape == "tiny"
    model = str(builtin_dir(BUILTIN)) if is_tiny else make_wide(folder / "wide")
    head = FLEET.format(folder=folder, model=model)
    began = time.monotonic()
    with (
        started(folder, "ours", head + OURS.format(device=arguments.device)) as herma,
        checked_client(herma.base_url, timeout_s=BOUND_S) as client,
    ):
        print(f"ours ready after {time.monotonic() - began:.0f} s", flush=True)
        ours = [text_of(ask(client, one)) for one in QUESTIONS]
    port = free_ports(3)
    endpoint = f"tcp://127.0.0.1:{port + 1}"
    replay = f"tcp://127.0.0.1:{port + 2}"
    argv = arguments.argv or vllm_argv(model, port, endpoint, replay)
    env = dict(_QUIET)
    if arguments.vllm_path is not None:
        path = arguments.vllm_path.resolve()
        env["PYTHONPATH"] = f"{path}:{path / 'site'}"
    keys = {
        "device": arguments.device,
        "folder": folder,
        "port": port,
        "events": endpoint,
        "replay": replay,
        "argv": json.dumps([word.replace("{port}", str(port)) for word in argv]),
        "env": ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items()),
    }
    events = KvEvents(endpoint)
    began = time.monotonic()
    rows: list[Row] = []
    try:
        with started(folder, "theirs", head + THEIRS.format(**keys)) as herma:
            print(f"theirs ready after {time.monotonic() - began:.0f} s", flush=True)
            with checked_client(herma.base_url, timeout_s=BOUND_S) as client:
                for row in chain(
                    checks(client, ours, has_tools=is_tiny), kv_checks(client, events)
                ):
                    rows.append(row)
                    print(f"{row[0]:34} {row[1]:24} {'ok' if row[2] else 'MISSED'}", flush=True)
            shown = ("attention", "WARNING", "warning:")
            for line in herma.output:
                if any(word in line for word in shown):
                    print("  |", line.rstrip()[:180])
    finally:
        events.close()
    return all(holds for _, _, holds in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="vLLM as a worker of Herma on a GPU.")
    parser.add_argument("--vllm-path", type=Path, help="the folder with an unpacked vLLM")
    parser.add_argument("--shape", choices=("tiny", "wide"), default="tiny")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument(
        "--argv", type=json.loads, help="a command line in place of vLLM's, as JSON"
    )
    with tempfile.TemporaryDirectory() as folder:
        return 0 if run(parser.parse_args(), Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
