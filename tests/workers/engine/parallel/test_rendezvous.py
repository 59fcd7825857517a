"""Ranks that meet by an address, as those of several hosts do: they answer as one rank, and each
way in which they do not come together ends in one line within a bounded time.
"""

import json
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from config import WorkerConfig
from protocol.errors import ConfigError
from tests.fakes.tiny_families import write_family
from tests.workers.engine.parallel.test_two_ranks import BOUND_S, answers, assert_equal
from workers.engine.parallel.rendezvous import (
    MeetingPoint,
    RankAbsent,
    RankHello,
    dial,
    gather,
    interface_of,
    listen,
    welcome,
)

SHORT_S = 0.3
FACTS = {"dtype": "float32", "herma": "1"}


def _port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def _rank(model_dir: Path, rank: int, port: int, **keys: Any) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.workers.engine.parallel.host_rank", str(model_dir)]
    arguments = [str(rank), f"127.0.0.1:{port}", "120", json.dumps(keys)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*command, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_two_ranks_that_meet_by_an_address_answer_as_one(tmp_path: Path) -> None:
    """Two ranks that meet by an address answer as one; then the first dies, and the other ends."""
    write_family(tmp_path, "llama3", vocab_size=152)
    port = _port()
    with _rank(tmp_path, 1, port) as second, _rank(tmp_path, 0, port) as first:
        assert first.stdout is not None
        line = first.stdout.readline()
        assert line, first.communicate(timeout=BOUND_S)[1]
        found, one = json.loads(line), answers(tmp_path, 1)
        assert_equal({key: one[key] for key in found}, found)
        first.send_signal(signal.SIGKILL)
        assert second.wait(BOUND_S) == 0


@pytest.mark.parametrize("family", ["gpt_oss", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_two_ranks_that_keep_only_windows_answer_as_one_that_keeps_all(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batched, behind saved windows, and in chunks. Then the second one dies, and the first ends
    with its name.
    """
    write_family(tmp_path, family, vocab_size=152)
    one, port = answers(tmp_path, 1), _port()
    monkeypatch.setenv("HERMA_TEST_WINDOWS", "1")
    with _rank(tmp_path, 1, port) as second, _rank(tmp_path, 0, port) as first:
        assert first.stdout is not None
        line = first.stdout.readline()
        assert line, first.communicate(timeout=BOUND_S)[1]
        found = json.loads(line)
        assert found["batched"] == one["batched"]
        assert found["chunked"] == one["chunked"]
        second.send_signal(signal.SIGKILL)
        # `part` of the test ends a thread; the text is what the supervisor would be told.
        assert first.stderr is not None
        lines = iter(first.stderr.readline, "")
        assert any("rank 1 of the engine, on 127.0.0.1, has ended" in line for line in lines)


def test_ranks_of_other_configurations_end_both_with_one_line(tmp_path: Path) -> None:
    write_family(tmp_path, "llama3", vocab_size=152)
    port = _port()
    with (
        _rank(tmp_path, 1, port, quantization="fp8") as second,
        _rank(tmp_path, 0, port) as first,
    ):
        texts = [process.communicate(timeout=BOUND_S)[1] for process in (first, second)]
    line = "rank 1 of group `g` has quantization = fp8, and rank 0 auto: start both alike"
    assert all(f"ConfigError: {line}" in text for text in texts), texts


def _hello(rank: int = 0, **changes: Any) -> RankHello:
    return RankHello("g", rank, changes.pop("ranks", 2), FACTS | changes)


def test_a_rank_that_never_comes_is_named() -> None:
    """A rank that never comes is named by its number, with the address."""
    port = _port()
    with listen(MeetingPoint("127.0.0.1", port)) as listener:
        text = f"rank 1 and rank 2 of group `g` did not come to 127.0.0.1:{port} within 0 s"
        with pytest.raises(RankAbsent, match=re.escape(text)):
            gather(listener, _hello(ranks=3), SHORT_S)


def test_ranks_that_came_are_told_who_did_not() -> None:
    """Ranks that came are told which rank did not, and wait no longer than the first."""
    with listen(MeetingPoint("127.0.0.1", _port())) as listener:
        address, caught = MeetingPoint(*listener.getsockname()), list[Exception]()

        def come() -> None:
            try:
                dial(address, _hello(2, ranks=3), 60.0)
            except RankAbsent as error:
                caught.append(error)

        other = threading.Thread(target=come)
        other.start()
        with pytest.raises(RankAbsent, match="rank 1 of group `g` did not come"):
            gather(listener, _hello(ranks=3), 3.0)
        other.join(BOUND_S)
    assert "rank 1 of group `g` did not come" in str(caught[0])


def test_a_wrong_address_is_named_on_both_sides() -> None:
    """The first rank cannot listen on another host's; the others find nobody, or no rank."""
    with pytest.raises(ConfigError, match=r"cannot listen at 192\.0\.2\.1:29600"):
        listen(MeetingPoint.of("192.0.2.1:29600"))
    port = _port()
    with pytest.raises(RankAbsent, match=f"found no rank 0 at 127.0.0.1:{port} within 0 s"):
        dial(MeetingPoint("127.0.0.1", port), _hello(1), SHORT_S)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = MeetingPoint(*other.getsockname())

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        stranger = threading.Thread(target=answer)
        stranger.start()
        with pytest.raises(RankAbsent, match=r"got no answer at 127\.0\.0\.1"):
            dial(address, _hello(1), 60.0)
        stranger.join(BOUND_S)


@pytest.mark.parametrize(
    ("hello", "text"),
    [
        (_hello(1, dtype="bfloat16"), "has dtype = bfloat16, and rank 0 float32: start both alike"),
        (_hello(1, herma="2"), "has herma = 2, and rank 0 1"),
        (_hello(1, ranks=3), "counts 3 ranks, and rank 0 2"),
        (_hello(2), "counts 2 ranks, and rank 0 2"),
        (RankHello("h", 1, 2, FACTS), "rank 1 of group `h` is none of group `g`"),
    ],
)
def test_a_rank_of_another_kind_is_refused_on_both_sides(hello: RankHello, text: str) -> None:
    with listen(MeetingPoint("127.0.0.1", _port())) as listener:
        address, caught = MeetingPoint(*listener.getsockname()), list[Exception]()

        def come() -> None:
            try:
                dial(address, hello, 60.0)
            except ConfigError as error:
                caught.append(error)

        other = threading.Thread(target=come)
        other.start()
        with pytest.raises(ConfigError, match=re.escape(text)):
            gather(listener, _hello(), 60.0)
        other.join(BOUND_S)
    assert text in str(caught[0])


def test_strangers_and_twins_do_not_keep_ranks_apart() -> None:
    """A connection without a valid greeting is closed; a second rank 1 gets the reason."""
    with listen(MeetingPoint("127.0.0.1", _port())) as listener:
        address, found = MeetingPoint(*listener.getsockname()), list[Any]()

        def come(rank: int) -> None:
            try:
                met = dial(address, _hello(rank, ranks=3), 60.0)
                found.append(met.store_port)
                met.connections[0].close()
            except ConfigError as error:
                found.append(str(error))

        odd = msgspec.msgpack.encode(_hello(1, ranks=3)).replace(b"\xa1g", b"\xa1\xff")
        with socket.create_connection(address) as scan, socket.create_connection(address) as other:
            scan.sendall(b"GET / HTTP/1.1\r\n\r\n")
            other.sendall(struct.pack("<I", len(odd)) + odd)
            others = [threading.Thread(target=come, args=(rank,)) for rank in (1, 1)]
            for one in others:
                one.start()
            last = threading.Timer(1.0, come, (2,))
            last.start()
            connections = gather(listener, _hello(ranks=3), 60.0)
            assert interface_of(connections[0]) == "lo"
            welcome(connections, 4711)
            for one in (*others, last):
                one.join(BOUND_S)
            for connection in connections:
                connection.close()
    assert sorted(map(str, found))[:2] == ["4711", "4711"]
    assert sorted(map(str, found))[2] == "rank 1 of group `g` is there already"


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"tensor_parallel": 1}, "set tensor_parallel = 2, or `ranks`"),
        ({"devices": ("cuda:0", "cuda:1")}, "name it in `device`"),
        ({"rendezvous": None}, "needs `rendezvous`, where its ranks meet"),
        ({"group_address": None}, "needs `group_address`"),
        ({"group": None}, "is only for workers of a `group`"),
        ({"rank": 2}, "rank 2 is none of 2 ranks"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: dict[str, Any], text: str) -> None:
    given = {
        "group": "g", "tensor_parallel": 2, "rank": 1, "rendezvous": "10.0.0.1:29600",
        "group_address": "tcp://10.0.0.1:8095",
    }  # fmt: skip
    WorkerConfig("w", "m", "m", (), 1, **given)
    with pytest.raises(ValueError, match=re.escape(text)):
        WorkerConfig("w", "m", "m", (), 1, **(given | keys))
