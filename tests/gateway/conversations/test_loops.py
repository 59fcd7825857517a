"""Loops are found by their sixth round, and healthy work is none."""

import itertools
import json
import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.request import Message, ToolCall
from gateway.conversations import LoopFinder, steps

K = 5


class Talk:
    """A conversation in the making."""

    def __init__(self) -> None:
        self.messages = [Message("system", "You are an agent."), Message("user", "Mend the build.")]
        self._ids = itertools.count()

    def step(self, tool: str, result: str, **arguments: Any) -> None:
        self.together((tool, result, json.dumps(arguments)))

    def together(self, *calls: tuple[str, str, str]) -> None:
        made = [ToolCall(f"call_{next(self._ids)}", name, text) for name, _, text in calls]
        self.messages.append(Message("assistant", "Let me see.", tool_calls=tuple(made)))
        self.messages += [
            Message("tool", result, tool_call_id=call.id)
            for call, (_, result, _) in zip(made, calls, strict=True)
        ]


def rounds_until_found(play: Callable[[Talk, int], None], most: int = 20) -> int | None:
    """How many rounds of `play` there are when the loop is found."""
    talk, finder = Talk(), LoopFinder()
    talk.step("ls", "a.py b.py", path=".")
    for number in range(1, most + 1):
        play(talk, number)
        if finder.find(talk.messages, K) is not None:
            return number
    return None


def _period(period: int) -> Callable[[Talk, int], None]:
    def play(talk: Talk, number: int) -> None:
        for at in range(period):
            talk.step(
                f"tool_{at}", f"The value of part {at} is what it was before, no change.", at=at
            )

    return play


def _ids(talk: Talk, number: int) -> None:
    talk.step(
        "search",
        "12 documents match the words, the best of them is 'Intro'.",
        query="roses",
        request_id=str(uuid.UUID(int=number)),
    )


def _times(talk: Talk, number: int) -> None:
    talk.step(
        "weather",
        f"Clear sky over Berlin with light wind (as of 2026-11-28T10:0{number % 10}:12Z)",
        city="Berlin",
        at=f"2026-11-28T10:00:{number:02d}Z",
    )


def _spaces(talk: Talk, number: int) -> None:
    gap = " " * number
    text = '{"command":' + gap + '"cat' + gap + 'notes.txt"}'
    talk.together(("bash", "the notes are as they have always been, nothing new here", text))


def _pages(talk: Talk, number: int) -> None:
    talk.step("read_file", "[]", path="a.log", offset=100 * number, limit=100)


def _errors(talk: Talk, number: int) -> None:
    talk.step("edit", "Error: old_string was not found in the file.", old=f"line {number * 7}")


def _error_ids(talk: Talk, number: int) -> None:
    talk.step("fetch", f"Error 503 (request 0a1b{number:04x}c3d4e5f6a7)", url="http://x/")


def _order(talk: Talk, number: int) -> None:
    pairs = [("a", 1), ("b", "two"), ("c", None)]
    text = json.dumps(dict(pairs if number % 2 else reversed(pairs)))
    talk.together(("query", "one row: 17, two rows: 18, three rows: 19, four rows: 20", text))


def _parallel(talk: Talk, number: int) -> None:
    calls = [
        (f"t{at}", f"part {at}: unchanged since the last time it was read", "{}") for at in (0, 1)
    ]
    talk.together(*(calls if number % 2 else reversed(calls)))


def _said(talk: Talk, number: int) -> None:
    talk.messages.append(Message("assistant", "I will now run the tests."))
    talk.messages.append(Message("user", "Go on."))


LOOPS = {
    **{f"period {one}": _period(one) for one in (1, 2, 3, 4)},
    "ids": _ids,
    "time stamps": _times,
    "white space": _spaces,
    "pages": _pages,
    "errors": _errors,
    "errors with ids": _error_ids,
    "order of keys": _order,
    "parallel": _parallel,
}


@pytest.mark.parametrize("kind", LOOPS)
def test_a_loop_is_found_by_the_sixth_round(kind: str) -> None:
    found = rounds_until_found(LOOPS[kind])
    assert found is not None
    assert 2 <= found <= K + 1


def test_a_loop_of_words_is_found() -> None:
    talk, finder = Talk(), LoopFinder()
    for number in range(1, 8):
        _said(talk, number)
        if finder.find(talk.messages, K) is not None:
            assert number <= K + 1
            return
    pytest.fail("not found")


def _healthy(random_: random.Random) -> Iterator[Talk]:
    """Conversations that repeat themselves for good reasons."""
    while True:
        talk = Talk()
        for _ in range(random_.randint(1, 4)):
            random_.choice(HEALTHY)(talk, random_)
        yield talk


def _poll(talk: Talk, random_: random.Random) -> None:
    job = random_.randint(1, 999)
    for _ in range(random_.randint(2, 20)):
        talk.step("job_status", '{"status": "running"}', job=job)
    talk.step("job_status", '{"status": "done"}', job=job)


def _progress(talk: Talk, random_: random.Random) -> None:
    for percent in range(0, 101, random_.choice((5, 10, 20))):
        talk.step("bash", f"{percent} % of the files are copied", command="cat progress")


def _edit_read(talk: Talk, random_: random.Random) -> None:
    for number in range(random_.randint(2, 12)):
        talk.step("edit", "ok", path="a.py", new=f"x = {number + random_.randint(0, 5) * 100}")
        talk.step("read", f"def f():\n    x = {number}\n    return x", path="a.py")


def _test_fix(talk: Talk, random_: random.Random) -> None:
    for number in range(random_.randint(2, 12)):
        talk.step("edit", "ok", path=f"m{number % 3}.py", old=f"a{number}", new=f"b{number}")
        talk.step("bash", f"3 failed, 10 passed in 1.{number}s", command="pytest -q")


def _paging(talk: Talk, random_: random.Random) -> None:
    for page in range(random_.randint(2, 15)):
        rows = [random_.randint(0, 10**6) for _ in range(5)]
        talk.step("list", json.dumps(rows), table="people", page=page)


def _batch(talk: Talk, random_: random.Random) -> None:
    for number in range(random_.randint(2, 12)):
        talk.step("delete", "ok", id=number)


def _uuids(talk: Talk, random_: random.Random) -> None:
    for _ in range(random_.randint(2, 12)):
        talk.step("archive", "done", item=str(uuid.UUID(int=random_.getrandbits(128))))


def _search(talk: Talk, random_: random.Random) -> None:
    words = random_.sample(["alpha", "beta", "gamma", "delta", "omega", "kappa", "sigma"], 7)
    for word in words:
        talk.step("grep", "No matches found", pattern=word)


def _looks(talk: Talk, random_: random.Random) -> None:
    for _ in range(random_.randint(3, 9)):
        talk.step("screenshot", "[image]")


HEALTHY = (_poll, _progress, _edit_read, _test_fix, _paging, _batch, _uuids, _search, _looks)


def test_no_healthy_conversation_is_a_loop() -> None:
    """No healthy conversation is a loop at any moment of its course, so each prefix that ends with
    a result is looked at.
    """
    finder, talks = LoopFinder(), _healthy(random.Random(7))
    for _ in range(1000):
        talk = next(talks)
        for end in range(4, len(talk.messages) + 1):
            if talk.messages[end - 1].role == "tool":
                found = finder.find(talk.messages[:end], K)
                assert found is None, (found, [m.content for m in talk.messages])


def test_something_pending_for_ever_is_a_loop_at_last() -> None:
    def play(talk: Talk, number: int) -> None:
        talk.step("job_status", '{"status": "pending"}', job=1)

    found = rounds_until_found(play, most=60)
    assert found is not None
    assert found == K * 8


@pytest.mark.parametrize(
    "result",
    [
        '{"output": "4711", "exit_code": 0, "error": null}',
        '{"content": [{"type": "text", "text": "4711"}], "is_error": false}',
        '{"stdout": "4711", "errors": [], "timed_out": false, "timeout": 120}',
        '{"passed": 3, "failed": 0, "failures": ""}',
        "Checked the file: 0 errors, no failures.",
        "return code: 0, error: None",
    ],
)
def test_a_result_that_says_that_it_went_well_is_no_error(result: str) -> None:
    """A result of success is no error: other commands with the same result are other steps."""
    play = lambda talk, number: talk.step("terminal", result, command=f"check part{number}")  # noqa: E731
    assert rounds_until_found(play) is None


@pytest.mark.parametrize(
    "result",
    [
        '{"output": "", "exit_code": 2, "error": null}',
        '{"output": "", "exit_code": 0, "error": "no such file"}',
        '{"stderr": "", "returncode": -9}',
        '{"is_error": true, "error": "denied"}',
        "3 errors, 0 failures",
    ],
)
def test_the_same_error_of_other_commands_is_a_loop(result: str) -> None:
    """The same error of other commands is a loop, whatever else the result says."""
    play = lambda talk, number: talk.step("terminal", result, command=f"check part{number}")  # noqa: E731
    assert rounds_until_found(play) is not None


def test_steps_that_differ_are_not_searched_for_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern takes a millisecond for ten thousand characters, on the way of a request."""
    talk = Talk()
    for number in range(2 * K):
        lines = "\n".join(f"{at}: value({number * at})" for at in range(500))
        talk.step("read", lines + "." * number + ")" * number, path=f"{number}.py")
        talk.step(f"write_{number}", "ok", text=lines)
    monkeypatch.setattr(steps, "plain_of", lambda text: pytest.fail(text[:40]))
    monkeypatch.setattr(steps, "call_hash", lambda *given: pytest.fail(str(given)[:40]))
    assert LoopFinder().find(talk.messages, K) is None


_PARTS = st.sampled_from(
    [
        "2026-11-28T10:00:12.5Z", "2026-11-28", "10:07 pm", "Mon, 12 Jan 2026", "1764300000.25",
        "1.5 sec", "7\u00b5s", "0a1b2c3d-0a1b-2c3d-4e5f-0a1b2c3d4e5f", "req_4f5e6d7c8b9a",
        "PID: 7", "request #3", "attempt=4", "\u0663ms", "\u017fun 1 abc 2026", " ", "\n", "\u00a0",
        "word", "#", "(", "]", '"', "/", "caf\u00e9", "\ud800", ",", ".", "x",
    ]
)  # fmt: skip


@given(st.lists(_PARTS, max_size=8).map("".join), st.lists(_PARTS, max_size=8).map("".join))
def test_patterns_replace_no_mark(one: str, other: str) -> None:
    """So results with other marks need no search."""
    assert steps.marks_of(one) == steps.marks_of(steps.plain_of(one))
    if steps.plain_of(one) == steps.plain_of(other):
        assert steps.marks_of(one) == steps.marks_of(other)
