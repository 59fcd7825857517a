"""Accounts are written in order, many at once, and none is lost."""

import logging
from functools import partial

import pytest

from gateway.runtime import Accounts
from gateway.runtime.accounts import MOST


def test_they_wait_until_a_request_ends_and_keep_their_order() -> None:
    made: list[int] = []
    accounts = Accounts()
    accounts.start()
    accounts.begin(partial(made.append, 1))
    accounts.begin(partial(made.append, 2))
    assert not accounts.is_due
    accounts.end(partial(made.append, 3))
    assert accounts.is_due
    assert not made
    accounts.write()
    assert made == [1, 2, 3]
    assert not accounts.is_due


def test_many_beginnings_are_due_without_an_end() -> None:
    made: list[int] = []
    accounts = Accounts()
    accounts.start()
    for number in range(MOST):
        assert not accounts.is_due
        accounts.begin(partial(made.append, number))
    assert accounts.is_due


def test_an_account_may_ask_for_another() -> None:
    made: list[str] = []
    accounts = Accounts()
    accounts.start()

    def first() -> None:
        made.append("first")
        accounts.end(partial(made.append, "second"))

    accounts.begin(first)
    accounts.write()
    assert made == ["first", "second"]


def test_a_failed_account_is_logged_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    made: list[int] = []
    accounts = Accounts()
    accounts.start()

    def fail() -> None:
        raise ValueError("a broken account")

    accounts.begin(partial(made.append, 1))
    accounts.begin(fail)
    accounts.end(partial(made.append, 2))
    with caplog.at_level(logging.ERROR):
        accounts.write()
    assert made == [1, 2]
    assert "a broken account" in caplog.text


def test_nothing_is_left_when_nobody_writes_any_more() -> None:
    made: list[int] = []
    accounts = Accounts()
    accounts.begin(partial(made.append, 1))
    accounts.end(partial(made.append, 2))
    assert made == [1, 2]
    accounts.start()
    accounts.begin(partial(made.append, 3))
    assert made == [1, 2]
    accounts.stop()
    accounts.end(partial(made.append, 4))
    assert made == [1, 2, 3, 4]
