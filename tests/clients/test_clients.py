"""The official clients of three lineages against scripted engines.

Each client's checks run once, in a process of their own, and every test here judges one observation
of one client. `make test` has the client that is installed for development; `make test-clients`
also those that it installs in environments of their own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import KEY
from tests.fakes.herma_process import HermaProcess, wait_until
from tests.fakes.pages import examples

BOUND_S = 180
HERE = Path(__file__).parent
ENVIRONMENTS = Path(os.environ.get("CLIENTS_DIR", HERE.parents[1] / ".clients")).absolute()
HELLO = "Hello from the script: naïve café 🙂, twice."
ATHENS = ["get_weather", {"city": "Athens", "days": 2}]
PARIS = ["get_weather", {"city": "Paris", "days": 3}]

CLIENTS = {
    "installed": [sys.executable, HERE / "check_openai.py"],
    "python-2": [ENVIRONMENTS / "openai-2/bin/python", HERE / "check_openai.py"],
    "python-3": [ENVIRONMENTS / "openai-3/bin/python", HERE / "check_openai.py"],
    "node": ["node", HERE / "check_openai.mjs", ENVIRONMENTS / "node"],
    "node-6": ["node", HERE / "check_openai.mjs", ENVIRONMENTS / "node-6"],
}


@pytest.fixture(scope="session")
def observations(scripted: HermaProcess) -> Callable[[str], dict[str, Any]]:
    """What a client has observed, by the name of the check."""

    @cache
    def of(client: str) -> dict[str, Any]:
        if client != "installed" and "CLIENTS_DIR" not in os.environ:
            pytest.skip("`make test-clients` makes the environments and runs this")
        argv = [*map(str, CLIENTS[client]), scripted.base_url, KEY]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND_S, check=False)
        assert done.returncode == 0, done.stderr
        observed: dict[str, Any] = json.loads(done.stdout)
        return observed

    return of


OWN = [pytest.param(client, marks=pytest.mark.slow) for client in CLIENTS if client != "installed"]


@pytest.fixture(scope="session", params=["installed", *OWN])
def seen(
    request: pytest.FixtureRequest, observations: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    """Each client's observations in turn."""
    return observations(request.param)


def test_models_are_listed_and_retrieved(seen: dict[str, Any]) -> None:
    """Models are listed and retrieved, also those that no worker serves now."""
    assert seen["models"] == {"ids": ["alpha", "narrow", "nobody"], "one": "alpha"}


def test_a_chat_is_the_same_whole_streamed_and_through_the_helper(seen: dict[str, Any]) -> None:
    """A chat is the same whole, streamed and through the helper, with its finish; the usage adds
    up, and is the last chunk of a stream.
    """
    assert seen["chat"] == {"text": HELLO, "finish": "stop", "adds_up": True}
    assert seen["stream_helper"] == {"text": HELLO, "finish": "stop", "tells_the_end": True}
    assert seen["stream"] == {
        "text": HELLO,
        "finish": "stop",
        "in_pieces": True,
        "usage_is_last": True,
        "one_id": True,
    }


def test_thoughts_stand_apart(seen: dict[str, Any]) -> None:
    """Thoughts stand apart, in one piece and streamed."""
    thought = "It is about stones."
    assert seen["reasoning"] == {"text": "A marker stone.", "thought": thought, "streamed": thought}


def test_calls_arrive_typed(seen: dict[str, Any]) -> None:
    """One call whole; two at once in deltas, and joined by the client's own helper."""
    one = ["get_weather", {"city": "Athens", "days": 1}]
    assert seen["tools"] == {"finish": "tool_calls", "calls": [one], "ids_differ": True}
    two = {"finish": "tool_calls", "calls": [ATHENS, PARIS], "ids_differ": True}
    assert seen["tools_stream"] == {**two, "in_pieces": True}
    assert seen["tools_helper"] == {**two, "parsed": [ATHENS[1], PARIS[1]]}


def test_a_result_is_answered(seen: dict[str, Any]) -> None:
    """The client sends back the call that it got, with its result."""
    assert seen["round_trip"] == {"text": "It is sunny in Athens."}


def test_responses_are_read_by_the_client_s_own_types(seen: dict[str, Any]) -> None:
    """Whole, streamed and through its helper; a call, and its result sent back."""
    assert seen["responses"] == {
        "texts": [HELLO, HELLO, HELLO],
        "ends": ["response.created", "response.completed"],
        "numbered": True,
        "call": ["get_weather", {"city": "Athens", "days": 1}],
        "text": "It is sunny in Athens.",
        "thought": "It is about stones.",
        "adds_up": True,
    }


def test_raw_completions_go_on(seen: dict[str, Any]) -> None:
    """The prompt has no template around it; streamed is the same."""
    assert seen["completions"] == {"text": " a time.", "same": True}


@pytest.mark.parametrize(
    ("case", "raised"),
    {
        "wrong key": ["AuthenticationError", 401, "invalid_api_key", False],
        "unknown model": ["NotFoundError", 404, "model_not_found", False],
        "bad body": ["BadRequestError", 400, "invalid_value", False],
        "over the window": ["BadRequestError", 400, "context_length_exceeded", False],
        "nobody serves it": ["InternalServerError", 503, "unavailable", True],
        "no such endpoint": ["NotFoundError", 404, "path_not_served", False],
    }.items(),
)
def test_errors_are_the_client_s_own(seen: dict[str, Any], case: str, raised: list[Any]) -> None:
    """Type, status, code, and Retry-After where another try is worth it."""
    assert seen["errors"][case] == raised


def test_an_error_in_mid_stream_is_raised_behind_the_text(seen: dict[str, Any]) -> None:
    """The client has what came, and the gateway's own words."""
    broken = seen["broken_stream"]
    assert broken["text"] == "Half an answer"
    kind, message = broken["raised"]
    assert kind == "APIError"
    assert message.startswith("The engine failed on this request")


def test_a_full_house_is_a_rate_limit_that_retries_survive(seen: dict[str, Any]) -> None:
    """A request without a place to wait is refused with Retry-After; a client that retries is
    served in the end.
    """
    assert seen["busy"] == {
        "refused": ["RateLimitError", 429, "busy", True],
        "queued": "no error",
        "retried": HELLO,
    }


def test_who_leaves_frees_the_place(seen: dict[str, Any]) -> None:
    """The worker has one place, which an endless answer held until its client left."""
    assert seen["cancelled"] == {"after leaving": HELLO, "after cancelling": HELLO}


def test_nothing_runs_when_a_client_has_left(scripted: HermaProcess, seen: dict[str, Any]) -> None:
    """Among what was observed are streams that their clients left: no engine holds one of them."""

    def is_idle() -> bool:
        return {
            value
            for name, value in scripted.metrics().items()
            if name.startswith("herma_engine_running")
        } == {0.0}

    assert seen
    wait_until(is_idle, "idle engines")


@pytest.mark.slow
def test_the_page_s_example_for_node_runs(scripted: HermaProcess) -> None:
    """The page's example for Node runs as it stands in docs/clients/openai.md; what it prints is
    the script's here.
    """
    if "CLIENTS_DIR" not in os.environ:
        pytest.skip("`make test-clients` makes the environments and runs this")
    (example,) = examples("openai.md", "javascript")
    module = ENVIRONMENTS / "node/example.mjs"
    module.write_text(example.at(scripted.root_url, "alpha"))
    environ = {**os.environ, "HERMA_API_KEY": KEY}
    printed = subprocess.check_output(["node", module], text=True, timeout=BOUND_S, env=environ)
    assert printed == HELLO
