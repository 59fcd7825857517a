"""Child processes: real ones, of a few lines each."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from herma.child_processes import Child, Children, keep_running

BOUND_S = 30.0
PAUSE = "import signal; print('up', flush=True); signal.pause()"


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """`keep_running` ignores signals when it returns, because a process ends with it; undo that
    here.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _child(code: str, lines: list[str], *, stop_s: float = BOUND_S) -> Child:
    return Child("child", [sys.executable, "-c", code], stop_s=stop_s, on_line=lines.append)


async def test_lines_and_the_exit_status_are_reported() -> None:
    """Lines are joined across writes; an unfinished one is dropped."""
    code = (
        "import os, sys\nfor part in (b'on', b'e\\ntwo', b'\\n', b'rest'): os.write(1, part)\n"
        "sys.stdin.read(); os.close(1); sys.exit(3)"
    )
    lines: list[str] = []
    with trio.fail_after(BOUND_S):
        assert await _child(code, lines).run() == 3
    assert lines == ["one", "two"]


async def test_one_that_does_not_stop_is_killed() -> None:
    """A child that does not stop is asked to stop first, and killed after its time to stop."""
    code = (
        "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    )
    lines: list[str] = []
    child = _child(code, lines, stop_s=0.1)
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.run)
            while not lines:  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


async def test_one_that_says_why_at_its_first_start_ends_all() -> None:
    """Status 2 means that a restart changes nothing."""
    with trio.fail_after(BOUND_S):
        assert await keep_running([_child("exit(2)", []), _child(PAUSE, [])]) == 2


async def test_one_that_dies_is_started_again(tmp_path: Path) -> None:
    """Any other end is a crash, and after the first start status 2 may pass; the others serve
    meanwhile.
    """
    code = (
        f"import os, sys; from pathlib import Path; marks = Path({str(tmp_path)!r});"
        "count = len(list(marks.iterdir())); (marks / str(count)).touch();"
        f"count or os.kill(os.getpid(), 9); count > 2 or sys.exit(count); {PAUSE}"
    )
    dying: list[str] = []
    others: list[str] = []
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:

            async def stop_when_up() -> None:
                while not dying:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)

            nursery.start_soon(stop_when_up)
            assert await keep_running([_child(code, dying), _child(PAUSE, others)]) == 0
    assert {mark.name for mark in await trio.Path(tmp_path).iterdir()} == {"0", "1", "2", "3"}
    assert others == ["up"]


async def test_one_that_cannot_be_started_again_is_tried_later(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The host lacks a process, memory or a file for a moment; the other children serve on."""
    folder = tmp_path / "folder"
    folder.mkdir()
    lines: list[str] = []
    others: list[str] = []
    argv = [sys.executable, "-c", PAUSE]
    child = Child("child", argv, stop_s=BOUND_S, on_line=lines.append, folder=str(folder))
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_running, [child, _child(PAUSE, others)])
            while not (lines and others):  # noqa: ASYNC110 (processes)
                await trio.sleep(0.01)
            folder.rmdir()
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            said = ""
            while "child cannot be started: " not in said:
                await trio.sleep(0.01)
                said += capfd.readouterr().err
            folder.mkdir()
            while len(lines) < 2:  # noqa: ASYNC110 (processes)
                await trio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
    assert others == ["up"]


async def test_one_that_cannot_be_started_at_first_ends_all() -> None:
    missing = Child("child", ["/nowhere/herma"], stop_s=BOUND_S)
    with trio.fail_after(BOUND_S):
        assert await keep_running([missing, _child(PAUSE, [])]) == 2


async def test_a_signal_stops_all() -> None:
    """A signal stops all children, which is no failure."""
    lines: list[str] = []
    children = [_child(PAUSE, lines), _child(PAUSE, lines)]
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:

            async def stop_when_up() -> None:
                while len(lines) < 2:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                os.kill(os.getpid(), signal.SIGTERM)

            nursery.start_soon(stop_when_up)
            assert await keep_running(children) == 0


async def test_the_same_signal_again_hurries_the_children(tmp_path: Path) -> None:
    """A second SIGINT or SIGTERM makes the children skip their drain."""
    code = (
        f"import signal, time; from pathlib import Path; marks = Path({str(tmp_path)!r});"
        "signal.signal(2, signal.SIG_IGN);"
        "signal.signal(15, lambda *_: (marks / str(len(list(marks.iterdir())))).touch());"
        "print('up', flush=True)\nwhile len(list(marks.iterdir())) < 2: time.sleep(0.01)"
    )
    lines: list[str] = []
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:

            async def stop_twice() -> None:
                while not lines:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)
                while not list(await trio.Path(tmp_path).iterdir()):  # noqa: ASYNC110
                    await trio.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)

            nursery.start_soon(stop_twice)
            assert await keep_running([_child(code, lines)]) == 0


async def test_a_later_one_that_says_why_stays_away(capfd: pytest.CaptureFixture[str]) -> None:
    """The others serve on; one that is ended is asked to stop, and its name is free."""
    lines: list[str] = []

    async def beside(children: Children) -> None:
        children.start(Child("late", [sys.executable, "-c", "exit(2)"], stop_s=BOUND_S))
        while "late" in children.names:  # noqa: ASYNC110
            await trio.sleep(0.01)
        while not lines:  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert children.names == ["child"]
        children.end("child")
        assert children.names == []
        assert children.end("child") is None
        os.kill(os.getpid(), signal.SIGTERM)

    with trio.fail_after(BOUND_S):
        assert await keep_running([_child(PAUSE, lines)], beside) == 0
    assert "late stays away" in capfd.readouterr().err
