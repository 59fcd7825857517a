"""A worker of two ranks, with drafts and a host cache, is served as any other: its answers,
grammars, and a rank that ends, stops or is slow.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import httpx
import pytest

from tests.fakes.herma_process import HermaProcess, descendants, herma_up, title_of, wait_until

BOUND_S: Final = 120.0
NUM_STREAMS: Final = 8
CONFIG: Final = """
[[models]]
name = "m"

[[workers]]
name = "pair"
model = "builtin:herma-tiny"
device = "cpu"
tensor_parallel = 2
cache = { host = "64MiB" }
speculation = { drafter = "builtin:herma-tiny/mtp", depth = 3 }

[[workers]]
name = "single"
model = "builtin:herma-tiny"
device = "cpu"
"""
SCHEMA: Final = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}},
    "required": ["sum"],
    "additionalProperties": False,
}
STRICT: Final = {
    "type": "json_schema",
    "json_schema": {"name": "s", "schema": SCHEMA, "strict": True},
}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HermaProcess]:
    config = tmp_path_factory.mktemp("ranks") / "herma.toml"
    config.write_text(CONFIG)
    with herma_up(config) as running:
        running.wait_models_ready({"m": 2})
        yield running


class Answer(NamedTuple):
    worker: str
    text: str
    end: str


def _stream(host: HermaProcess, number: int, seen: Callable[[str], None], **fields: Any) -> Answer:
    """One stream; `seen` is called with the worker that began it, at each piece."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": f"Say what {number} and 3 are together."}],
        "temperature": 0,
        "seed": 1,
        "stream": True,
        **fields,
    }
    url, text, end = f"{host.base_url}/chat/completions", "", ""
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=BOUND_S) as reply:
        worker = reply.headers["x-herma-worker"]
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line.removeprefix("data: ")).get("choices", ()):
                seen(worker)
                text += choice["delta"].get("content") or ""
                end = choice.get("finish_reason") or end
    return Answer(worker, text, end)


def _crowd(host: HermaProcess, seen: Callable[[str], None], **fields: Any) -> list[Answer]:
    """Streams at once, so many that both workers have some."""
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        asked = [
            pool.submit(_stream, host, number, seen, **fields) for number in range(NUM_STREAMS)
        ]
        answers = [each.result(BOUND_S) for each in asked]
    assert {answer.worker for answer in answers} == {"pair", "single"}
    return answers


def _rank(host: HermaProcess) -> int | None:
    pids = descendants(host.process.pid)
    return next((pid for pid in pids if title_of(pid) == "herma engine pair rank 1"), None)


def _running_rank(host: HermaProcess) -> int:
    pid = wait_until(lambda: _rank(host), "rank 1")
    assert pid is not None
    return pid


def test_a_grammar_holds_on_both_ranks(host: HermaProcess) -> None:
    answers = _crowd(host, lambda _: None, max_tokens=80, response_format=STRICT)
    for answer in answers:
        if answer.end == "stop":
            assert set(json.loads(answer.text)) == {"sum"}
    assert any(answer.end == "stop" for answer in answers if answer.worker == "pair")


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        (signal.SIGKILL, "rank 1 of the engine ended by signal 9"),
        (signal.SIGSTOP, "hung: no step finished"),
    ],
)
def test_a_lost_rank_ends_the_worker_and_no_stream(
    host: HermaProcess, how: signal.Signals, cause: str
) -> None:
    """A rank that is lost ends its worker: the streams go on at the other worker, and both ranks
    come back.
    """
    lost = _running_rank(host)
    answers = _crowd(host, _once(lambda: os.kill(lost, how)), max_tokens=150, ignore_eos=True)
    assert {answer.end for answer in answers} == {"length"}
    wait_until(lambda: (pid := _rank(host)) is not None and pid != lost, "rank 1 again")
    host.wait_models_ready({"m": 2})
    wait_until(lambda: any(cause in line for line in host.output), cause)


def test_a_slow_rank_slows_its_worker_alone(host: HermaProcess) -> None:
    """A rank that stands still for a while slows only its worker, and the same processes go on."""
    slow = _running_rank(host)

    def pause() -> None:
        os.kill(slow, signal.SIGSTOP)
        threading.Timer(2.0, os.kill, (slow, signal.SIGCONT)).start()

    answers = _crowd(host, _once(pause), max_tokens=150, ignore_eos=True)
    assert {answer.end for answer in answers} == {"length"}
    assert _rank(host) == slow


def _once(act: Callable[[], None]) -> Callable[[str], None]:
    """Act at the first piece that the pair sends."""
    lock, is_done = threading.Lock(), False

    def seen(worker: str) -> None:
        nonlocal is_done
        with lock:
            if worker != "pair" or is_done:
                return
            is_done = True
        act()

    return seen
