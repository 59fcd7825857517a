"""`python -m tests.workers.bridge.cost`: CPU per streamed token behind our engine and others.

Owns 64 paced streams through a whole gateway, and the CPU time that its processes take meanwhile.
Our engine is the synthetic one; the others are stubs, whose own time is left out. Judges nothing.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import trio

from benchmarks.machine import describe_machine
from protocol.transport import HttpClient
from tests.fakes.foreign_process import stub_argv
from tests.fakes.herma_process import HermaProcess, herma_up
from tests.fakes.ports import free_ports

NUM_STREAMS: Final = 64
STEP_MS: Final = 20
NUM_TOKENS: Final = 500
JSON: Final = [(b"content-type", b"application/json")]

GATEWAY = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "m"

[[workers]]
name = "w"
serves = "m"
max_seqs = 64
engine = "{kind}"
model = "{model}"
"""
TITLES: Final = {
    "gateway": "herma gateway",
    "supervisor": "herma worker w",
    "bridge": "herma engine w",
}


def main() -> int:
    """Print a table."""
    print(json.dumps(describe_machine()))
    print(f"{'engine':10} {'tokens/s':>9}  CPU us per token: " + "  ".join(TITLES))
    for kind in sys.argv[1:] or ["synthetic", "vllm", "llama-cpp", "openai"]:
        rate, cost = trio.run(_measure, kind)
        figures = "  ".join(f"{name} {cost[name]:6.1f}" for name in TITLES)
        print(f"{kind:10} {rate:9.0f}  {figures}", flush=True)
    return 0


async def _measure(kind: str) -> tuple[float, dict[str, float]]:
    folder = Path(tempfile.mkdtemp(prefix="herma-cost-"))
    config = folder / "herma.toml"
    config.write_text(_config(kind, folder))
    with herma_up(config) as herma:
        await trio.to_thread.run_sync(herma.wait_models_ready, {"m": 1})
        await _streams(herma.base_url, 20)
        before, began_at = _cpu(herma), time.monotonic()
        num_tokens = await _streams(herma.base_url, NUM_TOKENS)
        seconds = time.monotonic() - began_at
        after = _cpu(herma)
    return num_tokens / seconds, {
        name: (after[name] - before[name]) * 1e6 / num_tokens for name in TITLES
    }


def _config(kind: str, folder: Path) -> str:
    model = "there" if kind == "openai" else "builtin:herma-tiny"
    text = GATEWAY.format(folder=folder, kind=kind, model=model)
    if kind == "synthetic":
        return text + f"step_ms = {STEP_MS}\nkv_tokens = 131072\ncontext_length = 2048\n"
    port = str(free_ports(1))
    argv = json.dumps(stub_argv(port, kind=kind, token_ms=STEP_MS))
    keys = f'url = "http://127.0.0.1:{port}"\nlaunch = {{ argv = {argv} }}\nprobe_context = 0\n'
    return text + keys + "context_length = 2048\n"


async def _streams(base_url: str, num_tokens: int) -> int:
    """All at once; how many tokens they brought."""
    origin, _, path = base_url.rpartition("/")
    client = HttpClient(origin)
    counts: list[int] = []
    async with trio.open_nursery() as nursery:
        for number in range(NUM_STREAMS):
            nursery.start_soon(_stream, client, f"/{path}", number, num_tokens, counts)
    client.close()
    return sum(counts)


async def _stream(
    client: HttpClient, path: str, number: int, num_tokens: int, counts: list[int]
) -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": f"Tell me story {number}."}],
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    last = b""
    async with client.exchange(
        "POST", f"{path}/chat/completions", JSON, json.dumps(body).encode()
    ) as response:
        async for data in response.body:
            last = (last + data)[-4096:]
    usage = next(line for line in reversed(last.split(b"\n\n")) if b"completion_tokens" in line)
    counts.append(json.loads(usage.removeprefix(b"data: "))["usage"]["completion_tokens"])


def _cpu(herma: HermaProcess) -> dict[str, float]:
    """Seconds of CPU that each process has taken."""
    ticks = os.sysconf("SC_CLK_TCK")
    used: dict[str, float] = {}
    for name, title in TITLES.items():
        (pid, *_) = herma.pids(title)
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        used[name] = (int(fields[11]) + int(fields[12])) / ticks
    return used


if __name__ == "__main__":
    sys.exit(main())
