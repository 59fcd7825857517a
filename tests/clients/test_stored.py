"""Stored responses, background mode and conversations by the official Python clients."""

import json
import os
import subprocess
from typing import Any

import pytest

from tests.clients.conftest import KEY
from tests.clients.test_clients import BOUND_S, CLIENTS, HELLO, HERE
from tests.fakes.herma_process import HermaProcess

MAJORS = [pytest.param(client, marks=pytest.mark.slow) for client in ("python-2", "python-3")]
NOT_FOUND = ["NotFoundError", 404, "not_found"]


@pytest.fixture(scope="module", params=["installed", *MAJORS])
def seen(request: pytest.FixtureRequest, scripted: HermaProcess) -> dict[str, Any]:
    """What each client has observed."""
    if request.param != "installed" and "CLIENTS_DIR" not in os.environ:
        pytest.skip("`make test-clients` makes the environments and runs this")
    python = CLIENTS[request.param][0]
    argv = [str(python), str(HERE / "check_stored.py"), scripted.base_url, KEY]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stderr
    observed: dict[str, Any] = json.loads(done.stdout)
    return observed


def test_a_response_is_gone_on_from_and_deleted(seen: dict[str, Any]) -> None:
    """A call, and its result with nothing but the id of the response before."""
    assert seen["history"] == {
        "text": "It is sunny in Athens.",
        "same": True,
        "items": ["message", "function_call", "function_call_output"],
        "deleted": NOT_FOUND,
        "unknown": ["NotFoundError", 404, "previous_response_not_found"],
    }


def test_a_background_response_is_polled_replayed_and_cancelled(seen: dict[str, Any]) -> None:
    """The client's own types read every state."""
    assert seen["background"] == {
        "begun": True,
        "text": HELLO,
        "ends": ["response.created", "response.completed"],
        "late": True,
        "cancelled": "cancelled",
    }


def test_a_background_stream_goes_on_behind_its_last_event(seen: dict[str, Any]) -> None:
    """The client has left the first connection."""
    assert seen["resumed"] == {"numbered": True, "end": "response.completed"}


def test_conversations_are_read_by_the_client_s_own_types(seen: dict[str, Any]) -> None:
    """All of their endpoints."""
    assert seen["conversations"] == {
        "thought": "reasoning",
        "items": ["message", "message", "reasoning", "message"],
        "one": "message",
        "metadata": [{"c": "d"}, {"c": "d"}],
        "deleted": [True, NOT_FOUND],
    }
