"""Engines that answer their health check and no request: who answers then, and the way back."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.foreign_process import foreign_process, pids_of, stub_argv
from tests.fakes.herma_process import REST, herma_up, wait_until
from tests.fakes.ports import free_ports
from workers.supervisor.restart_policy import MAX_FAILED_STARTS

BOUND_S = 60.0

CONFIG = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"
resume_wait_s = {resume_wait_s}
first_token_s = {first_token_s}

[[models]]
name = "m"
{fallback}

[[workers]]
name = "w"
model = "there"
serves = "m"
engine = "openai"
url = "http://127.0.0.1:{port}"
probe_context = 64
{launch}
"""

PROVIDER = """
[providers.far]
base_url = "{url}/v1"
"""


class Fleet:
    """What a test asks of the gateway at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url.removesuffix("/v1")

    def ask(self, text: str, *, streamed: bool = False) -> httpx.Response:
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": text}],
            "stream": streamed,
            "max_tokens": 8,
        }
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=BOUND_S)

    def served_by(self, text: str) -> str:
        return str(self.ask(text).headers.get("x-herma-served-by"))

    def shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = httpx.get(f"{self.url}/dashboard/state", timeout=BOUND_S).json()
        return shown

    def state(self) -> str:
        (worker,) = self.shown()["overview"]["workers"]
        return str(worker["state"])

    def health(self) -> str:
        return str(httpx.get(f"{self.url}/health", timeout=BOUND_S).json()["models"]["m"])

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.shown()["events"]]


def until(holds: Callable[[], bool]) -> None:
    """Return once `holds` does."""
    deadline = time.monotonic() + BOUND_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.1)


def change(url: str, **settings: Any) -> None:
    httpx.post(f"{url}/stub", json=settings, timeout=BOUND_S).raise_for_status()


@pytest.mark.parametrize("how", ["fails", "refuses"])
def test_an_attached_engine_that_fails_everything_gives_way_and_comes_back(
    tmp_path: Path, how: str
) -> None:
    """No client sees its errors; events, health and dashboard say so; tokens bring it back."""
    with foreign_process(kind="openai") as engine, foreign_process(kind="openai") as far:
        fallback = 'fallback = [{ provider = "far", model = "there" }]'
        text = CONFIG.format(
            folder=tmp_path,
            port=engine.url.rsplit(":", 1)[1],
            launch="",
            fallback=fallback,
            first_token_s=30,
            resume_wait_s=20,
        )
        config = tmp_path / "herma.toml"
        config.write_text(text + PROVIDER.format(url=far.url))
        with herma_up(config) as herma:
            herma.wait_models_ready({"m": 1})
            fleet = Fleet(herma.base_url)
            assert fleet.served_by("first") == "worker"
            change(engine.url, **{how: True})
            for number in range(6):
                reply = fleet.ask(f"bad {number}", streamed=number % 2 == 1)
                assert reply.status_code == 200, reply.text
                assert reply.headers["x-herma-served-by"] == "cloud:far"
            assert "worker unproven" in fleet.kinds()
            if how == "fails":
                until(lambda: "engine fault" in fleet.kinds())
                until(lambda: fleet.state() == "starting")
            assert fleet.state() != "ready"
            assert fleet.health() == "cloud"
            change(engine.url, **{how: False})
            until(lambda: fleet.served_by(f"later {time.monotonic()}") == "worker")
            # The answer is whole for its client a moment before its place is given back.
            until(lambda: (fleet.state(), fleet.health()) == ("ready", "ready"))


def test_an_attached_engine_that_refuses_everything_comes_back(tmp_path: Path) -> None:
    """A proxy in front of it refuses each request while it restarts, for longer than five starts
    take: its worker is not given up, and nobody has to start it again by hand.
    """
    with foreign_process(kind="openai") as engine:
        port = engine.url.rsplit(":", 1)[1]
        config = tmp_path / "herma.toml"
        text = CONFIG.format(
            folder=tmp_path, port=port, launch="", fallback="", first_token_s=30, resume_wait_s=1
        )
        config.write_text(text)
        with herma_up(config) as herma:
            herma.wait_models_ready({"m": 1})
            fleet = Fleet(herma.base_url)
            change(engine.url, forbids=True)
            for number in range(3):
                fleet.ask(f"bad {number}")
            tried = f"failed start {MAX_FAILED_STARTS + 1},"
            wait_until(lambda: tried in "".join(herma.output), "one try more than any other has")
            change(engine.url, forbids=False)
            wait_until(lambda: fleet.state() == "ready", "the worker's return", rest=REST)
            assert fleet.served_by("good") == "worker"


def test_a_launched_engine_that_fails_everything_is_started_anew(tmp_path: Path) -> None:
    """Without a fallback requests wait for its next process."""
    port = str(free_ports(1))
    argv = json.dumps(stub_argv(port, kind="openai"))
    text = CONFIG.format(
        folder=tmp_path, port=port, launch=f"launch = {{ argv = {argv} }}", fallback="",
        first_token_s=30, resume_wait_s=20,
    )  # fmt: skip
    config = tmp_path / "herma.toml"
    config.write_text(text)
    with herma_up(config) as herma:
        herma.wait_models_ready({"m": 1})
        fleet = Fleet(herma.base_url)
        before = pids_of(port)
        change(f"http://127.0.0.1:{port}", fails=True)
        statuses = [fleet.ask(f"bad {number}").status_code for number in range(5)]
        assert statuses.count(500) <= 3, statuses
        assert statuses[-1] == 200
        assert pids_of(port) != before
        assert "engine fault" in fleet.kinds()
