"""What reading a text costs grows with its length and no faster, whatever the text is.

A pattern that tries again from each place of a long run costs the square of its length, with
Python's lock held: one body, or one answer of a model, would stop every stream. Each row has a text
that did, in two lengths, and what reads it. Processor time of this thread is compared, so that a
busy machine changes nothing.
"""

import json
from collections.abc import Callable
from time import thread_time

import pytest

from gateway.api import Signer, check_counts, parse_messages
from gateway.output.tools.deepseek import _HEAD
from gateway.output.tools.harmony import RECIPIENT
from gateway.output.tools.kimi3 import _ATTRIBUTE
from gateway.upstream.redaction import without_inner_words
from protocol.grammars import form_of

TIMES_LONGER = 16
LEAST_S = 0.01
MOST_GROWTH = 4 * TIMES_LONGER
"""The square would be 16 times `TIMES_LONGER`, and a pattern of four runs 4,096 times."""


def seconds(read: Callable[[str], object], text: str) -> float:
    """What one call takes, measured over as many calls as take `LEAST_S`."""
    num, began = 0, thread_time()
    while (taken := thread_time() - began) < LEAST_S:
        read(text)
        num += 1
    return taken / num


def assert_grows_with_length(read: Callable[[str], object], text_of: Callable[[int], str]) -> None:
    """A text of so many times the length costs about so many times as much."""
    short, long = text_of(1), text_of(TIMES_LONGER)
    cost = min(seconds(read, short) for _ in range(3))
    began = thread_time()
    read(long)
    assert thread_time() - began < max(MOST_GROWTH * cost, LEAST_S)


def _counts(text: str) -> None:
    # So many brackets that the values outside of texts are counted one by one.
    check_counts(b"[" * 99_990 + text.encode())


def _system(text: str) -> None:
    body = {"model": "m", "max_tokens": 1, "system": text, "messages": []}
    body["messages"] = [{"role": "user", "content": "a"}]
    parse_messages(json.dumps(body).encode(), Signer(b"k" * 32))


@pytest.mark.parametrize(
    ("read", "text_of"),
    [
        pytest.param(_counts, lambda n: '"' + '\\"' * 1000 * n, id="a text that does not end"),
        pytest.param(_counts, lambda n: '\\"' * 1000 * n, id="quotes outside of texts"),
        pytest.param(_system, lambda n: "\n" * 2000 * n, id="blank lines in instructions"),
        pytest.param(_HEAD.fullmatch, lambda n: "a" + " " * 8 * n + "`", id="a call's blank name"),
        pytest.param(_ATTRIBUTE.findall, lambda n: "a" * 200 * n, id="an attribute's name"),
        pytest.param(RECIPIENT.search, lambda n: "to=" + " " * 200 * n + "x", id="a recipient"),
        pytest.param(without_inner_words, lambda n: "a." * 500 * n, id="a scheme without an end"),
        pytest.param(
            lambda text: form_of("lark", text),
            lambda n: "\n" * 500 * n,
            id="a grammar's blank lines",
        ),
    ],
)
def test_a_text_costs_no_more_than_its_length(
    read: Callable[[str], object], text_of: Callable[[int], str]
) -> None:
    """What is read of clients, models and servers costs about its length."""
    assert_grows_with_length(read, text_of)


@pytest.mark.parametrize(
    ("head", "recipient"),
    [
        ("to=functions.f <|constrain|>json", "functions.f"),
        ("to=functions.f json", "functions.f"),
        ("to=functions.my tool <|constrain|>json", "functions.my tool"),
        ("to=functions.f", "functions.f"),
        ("to=functions.f \n", "functions.f"),
        ("to=functions.f\n<|constrain|>json", "functions.f"),
        ("to=a<b<|channel|>", "a<b"),
        ("commentary to=python code", "python"),
        ("to=functions.f jsonl", "functions.f jsonl"),
    ],
)
def test_a_recipient_ends_where_it_did(head: str, recipient: str) -> None:
    """A recipient ends at a tag, at `json` or `code`, and at the end, without the space before."""
    found = RECIPIENT.search(head)
    assert found is not None
    assert found[1] == recipient
