"""The official Anthropic client of two lineages against scripted engines.

The environments are made by `make test-clients`; `make test` reads the same streams with checkers
of our own.
"""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import KEY
from tests.fakes.herma_process import HermaProcess

BOUND_S = 180
HERE = Path(__file__).parent
ENVIRONMENTS = Path(os.environ.get("CLIENTS_DIR", HERE.parents[1] / ".clients")).absolute()
HELLO = "Hello from the script: naïve café 🙂, twice."
VERSIONS = ("anthropic-0", "anthropic-2")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session", params=VERSIONS)
def seen(request: pytest.FixtureRequest, scripted: HermaProcess) -> dict[str, Any]:
    """Each client's observations in turn."""
    if "CLIENTS_DIR" not in os.environ:
        pytest.skip("`make test-clients` makes the environments and runs this")
    return _observations(request.param, scripted.root_url)


@cache
def _observations(client: str, url: str) -> dict[str, Any]:
    argv = [ENVIRONMENTS / client / "bin/python", HERE / "check_anthropic.py", url, KEY]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stderr
    observed: dict[str, Any] = json.loads(done.stdout)
    return observed


def test_a_message_is_the_same_whole_and_streamed(seen: dict[str, Any]) -> None:
    """A message to a name that only a wildcard knows is the same whole and streamed."""
    assert seen["message"] == {"text": HELLO, "stop": "end_turn", "counts": True}
    assert seen["stream"] == {
        "text": HELLO,
        "final": HELLO,
        "in_pieces": True,
        "stop": "end_turn",
        "counts": True,
    }


def test_models_are_listed(seen: dict[str, Any]) -> None:
    """Models are listed in the shape that this client reads; a pattern is no model."""
    assert seen["models"] == ["alpha", "narrow", "nobody"]


def test_thinking_is_a_signed_block(seen: dict[str, Any]) -> None:
    """Thinking is a signed block before the text."""
    thought = "It is about stones."
    assert seen["thinking"] == {"thought": thought, "signed": True, "text": "A marker stone."}


def test_a_call_and_its_result(seen: dict[str, Any]) -> None:
    """The client's own helper joins the call; the count of the history is exact."""
    assert seen["tools"] == {
        "stop": "tool_use",
        "calls": [["get_weather", {"city": "Athens", "days": 1}]],
        "text": "It is sunny in Athens.",
        "count_is_exact": True,
    }


def test_the_tool_runner_comes_to_an_end(seen: dict[str, Any]) -> None:
    """Also where it asked for a conversation that the server holds."""
    calls = [["Athens", 2], ["Paris", 3]]
    assert seen["tool_runner"] == {"ran": calls, "text": "It is sunny in Athens."}


def test_a_call_that_breaks_off_is_a_message_that_was_cut(seen: dict[str, Any]) -> None:
    """The client reads what is there of it, and its documented look at the last block works."""
    assert seen["half_a_call"] == [["max_tokens", "tool_use", {"days": 1}]] * 2


@pytest.mark.parametrize(
    ("case", "raised"),
    {
        "wrong key": ["AuthenticationError", 401, True],
        "unknown model": ["NotFoundError", 404, True],
        "bad body": ["BadRequestError", 400, True],
        "over the window": ["BadRequestError", 400, True],
    }.items(),
)
def test_errors_are_the_client_s_own(seen: dict[str, Any], case: str, raised: list[Any]) -> None:
    """Type, status, and the request's id."""
    assert seen["errors"][case] == raised
