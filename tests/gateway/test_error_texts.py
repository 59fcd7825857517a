"""Every text that a client can be told, held against the words on which Hermes Agent acts."""

import ast
import inspect
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.api import errors
from gateway.api.errors import ApiError
from gateway.spending.limits import Account, LimitWindow, OverLimit, Unbounded
from gateway.spending.refusals import refusal_error
from tests.fakes.hermes_words import window_in, words_in

ROOT = Path(__file__).parents[2]
OTHER_APIS = {
    ROOT / "gateway/api" / name
    for name in ("messages_formatter.py", "messages_parser.py", "responses_formatter.py")
} | {ROOT / "gateway/upstream/error_words.py"}
"""The clients of Messages and Responses act on words of their own, which these give on purpose. The
last one looks for words of other servers.
"""
SOURCES = (
    *sorted({*(ROOT / "gateway").rglob("*.py")} - OTHER_APIS),
    ROOT / "workers/scheduler/admission.py",  # its refusals are passed on
    ROOT / "protocol/sampling.py",
)
MEANT = {
    # The one text that speaks of the window, and the one of a model that is not here.
    "This model's maximum context length is ",
    " tokens. Please reduce the length of the ",
    "` does not exist here; GET /v1/models lists those that do.",
    "model_not_found",
    # The one that says: send the same again.
    "upstream connection lost",
    # Names of fields, which no text shows.
    "max_tokens",
    "max_model_len",  # (those of attributes begin with an underscore)
    # A worker's, which the gateway says in its own words.
    "the context length is ",
    # For the log: the ledger's own bound.
    "too many requests wait for the ledger",
    # The type of a 402, for clients that stop at nothing else.
    "billing_error",
    # A kind of finding: the line of a prompt that changes with each request.
    "billing line",
}
ARGUMENTS: dict[str, Any] = {
    "param": "n",
    "message": "It cannot be.",
    "model": "beta",
    "provider": "far",
    "reasons": "Spent.",
    "deaths": 3,
    "context_length": 65_536,
    "prompt_tokens": 70_000,
    "retry_after_s": 5,
    "error": errors.spending_limit_reached("Spent.", 5),
    "is_stopping": True,
}


def _strings(path: Path) -> Iterator[tuple[int, str]]:
    """The string constants of a file, without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    told = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in told:
            yield node.lineno, node.value


def _words_outside(sources: tuple[Path, ...]) -> list[str]:
    return [
        f"{path.name}:{line} {words} in {text!r}"
        for path in sources
        for line, text in _strings(path)
        # Names of attributes, and patterns, are no texts.
        if text not in MEANT and not text.startswith(("_", "(?i")) and (words := words_in(text))
    ]


def test_no_text_has_a_word_that_means_something_else() -> None:
    """Overflow, billing, limits, lost connections: such words stand where they are meant only."""
    assert len(SOURCES) > 50
    assert not _words_outside(SOURCES)


def test_the_scan_finds_what_it_looks_for(tmp_path: Path) -> None:
    """A text with such a word would be found, also in the middle of a formatted one."""
    bad = tmp_path / "bad.py"
    bad.write_text('"""Too many tokens."""\nx = f"The prompt length is {1}."\n')
    (found,) = _words_outside((bad,))
    assert "bad.py:2 ['prompt length']" in found


def _built() -> dict[str, ApiError]:
    builders = {
        name: function
        for name, function in inspect.getmembers(errors, inspect.isfunction)
        if function.__module__ == errors.__name__ and not name.startswith("_")
    }
    return {
        name: function(
            **{
                one.name: ARGUMENTS[one.name]
                for one in inspect.signature(function).parameters.values()
                if one.default is one.empty
            }
        )
        for name, function in builders.items()
    }


@pytest.mark.parametrize("name", sorted(_built()))
def test_every_builder_makes_a_whole_error(name: str) -> None:
    """A text, a status of an error, the four fields, and whole seconds where there are any."""
    error = _built()[name]
    assert 400 <= error.status < 600
    assert error.message.endswith(".") or name == "connection_lost"
    assert error.retry_after_s is None or type(error.retry_after_s) is int
    assert (error.status in (429, 503)) == (error.retry_after_s is not None)
    assert "/" not in error.message.replace("/v1/models", "")


def test_only_the_overflow_names_the_window() -> None:
    """The client finds the number where it looks first, and nowhere else."""
    windows = {name: window_in(error.message) for name, error in _built().items()}
    assert windows.pop("context_length_exceeded") == 65_536
    assert set(windows.values()) == {None}


FAR = Account("provider", "far")
COST = 5_000


def _over(limit: int, spent: int, reserved: int = 0) -> OverLimit:
    window = LimitWindow(FAR, "daily", limit, spent, reserved)
    resets_at = datetime(2026, 11, 22, tzinfo=UTC)
    return OverLimit(window, COST, window.left, resets_at, 600, is_news=True)


@pytest.mark.parametrize("cap", [0, 65_536])
@pytest.mark.parametrize(
    "refusal",
    [
        _over(0, 0),
        _over(9_000, 9_000),
        _over(9_000, 6_000),
        _over(9_000, 3_000, 4_000),
        _over(4_000, 0),
        Unbounded(FAR, "price", 9_000),
        Unbounded(FAR, "output", 9_000),
    ],
)
def test_a_spent_budget_does_not_read_like_an_empty_account(refusal: Any, cap: int) -> None:
    """Words of billing make an agent give a key up for good; these are made of other ones. Nor is a
    cap on the output taken for the window.
    """
    message = refusal_error(refusal, "far", cap).message
    assert not words_in(message)
    assert window_in(message) is None
