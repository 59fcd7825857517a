"""The table of clients, whose turns only `make test-clients` makes."""

from typing import Any

import msgspec
import pytest

from tests.clients.catalogue import Call, all_clients


def test_every_client_has_words_to_run() -> None:
    """The table can be read, and each client says how it is run."""
    assert all(one.argv and one.packages for one in all_clients())


@pytest.mark.parametrize("arguments", [{"command": "cat {home}/work/note.txt"}, {"a": ["{bin}"]}])
def test_a_call_with_a_place_that_nothing_fills_is_refused(arguments: dict[str, Any]) -> None:
    """The engine would write it as it is: the client's tool then fails in every turn."""
    with pytest.raises(msgspec.ValidationError, match="nothing fills"):
        msgspec.convert({"name": "exec", "arguments": arguments}, Call)


def test_a_call_may_have_braces_of_its_own() -> None:
    """A call may have braces of its own: only the places of the table are refused."""
    assert msgspec.convert({"name": "exec", "arguments": {"command": "echo {1..3}"}}, Call)
