"""The error object and the words that clients act on."""

import json
import re

from gateway.api import errors
from gateway.api.errors import ApiError


def test_the_body_has_the_four_fields_of_the_api() -> None:
    """Every error says message, type, param and code, null where there is none."""
    body = json.loads(ApiError(404, "No such page.").body())
    assert body == {
        "error": {
            "message": "No such page.",
            "type": "not_found_error",
            "param": None,
            "code": None,
        }
    }


def test_the_overflow_text_gives_clients_the_window() -> None:
    """A client finds the window in the text, as Hermes Agent parses it, and the code."""
    error = errors.context_length_exceeded(65536, 70000)
    found = re.search(r"maximum context length is (\d{4,}) tokens", error.message)
    assert found
    assert found[1] == "65536"
    assert (error.status, error.code) == (400, "context_length_exceeded")


def test_an_error_quotes_a_bounded_part_of_a_request() -> None:
    """A name of a megabyte comes back as its beginning."""
    error = errors.model_not_found("x" * 1_000_000)
    named = ApiError(400, "No.", param="y" * 1_000_000)
    assert "`xxx" in error.message
    assert len(error.body()) < 5_000
    assert len(named.body()) < 5_000
