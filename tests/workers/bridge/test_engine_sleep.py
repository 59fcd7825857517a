"""The calls that put external engines to sleep, against stub servers over HTTP."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

from tests.fakes.foreign_engine import Settings, State, open_server
from tests.fakes.worker_process import BOUND_S
from workers.bridge.engine_client import EngineClient
from workers.bridge.engine_sleep import EngineSleep
from workers.bridge.readiness import StopText
from workers.external import SglangApi, VllmApi
from workers.model_dir import builtin_dir

KINDS = {"vllm": VllmApi, "sglang": SglangApi}


@contextmanager
def engine(kind: str = "vllm", **settings: Any) -> Iterator[tuple[EngineSleep, State]]:
    state = State(Settings(kind=kind, token_ms=0.0, **{"can_sleep": True, **settings}))
    server = open_server("0", state)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    api = KINDS[kind]()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    client = EngineClient(url, api, api_key=settings.get("key"), max_connections=4)
    text = StopText(builtin_dir("builtin:herma-tiny"))
    try:
        yield EngineSleep(client, api, api.sleep_calls, text), state
    finally:
        client.close()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [None, "sk-1"])
async def test_there_and_back(kind: str, key: str | None) -> None:
    """Twice, with the key that the engine asks for."""
    with trio.fail_after(BOUND_S), engine(kind, key=key) as (sleep, state):
        assert await sleep.refusal() == ""
        for _ in range(2):
            assert await sleep.fall_asleep() == ""
            assert state.is_asleep
            assert await sleep.wake() == ""
            assert not state.is_asleep


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("vllm", "--enable-sleep-mode and with VLLM_SERVER_DEV_MODE=1"),
        ("sglang", "start the server with --enable-memory-saver and --enable-weights-cpu-backup"),
    ],
)
async def test_what_the_server_was_not_started_with_is_named(kind: str, why: str) -> None:
    with trio.fail_after(BOUND_S), engine(kind, can_sleep=False) as (sleep, _):
        assert why in await sleep.refusal()


@pytest.mark.parametrize(
    ("kind", "fault", "why"),
    [
        ("vllm", "status", "it answers POST /sleep?level=1 with 500"),
        ("sglang", "status", "it answers POST /release_memory_occupation with 500"),
        ("vllm", "says", "with 200, and says that it is awake"),
    ],
)
async def test_a_sleep_that_is_none(kind: str, fault: str, why: str) -> None:
    with trio.fail_after(BOUND_S), engine(kind, sleep_fault=fault) as (sleep, state):
        assert why in await sleep.fall_asleep()
        assert not state.is_asleep


@pytest.mark.parametrize(
    ("kind", "fault", "why"),
    [
        ("vllm", "status", "it answers POST /wake_up with 500"),
        ("vllm", "says", "with 200, and says that it is asleep"),
        ("sglang", "says", "the engine answers 503"),
        ("vllm", "weights", "its weights are not what they were"),
        ("sglang", "weights", "its weights are not what they were"),
    ],
)
async def test_a_wake_that_is_none(kind: str, fault: str, why: str) -> None:
    """What says nothing of itself is asked for tokens, and for the same as before."""
    with trio.fail_after(BOUND_S), engine(kind, wake_fault=fault) as (sleep, _):
        assert await sleep.fall_asleep() == ""
        assert why in await sleep.wake()


async def test_an_engine_that_answers_nothing_is_not_put_to_sleep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine that answers nothing is not put to sleep: nothing could prove that it woke."""

    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(EngineClient, "answer", nothing)
    with trio.fail_after(BOUND_S), engine() as (sleep, state):
        assert await sleep.fall_asleep() == "it answers a prompt with no token"
        assert not state.is_asleep
