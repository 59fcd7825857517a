"""Limits of several hosts, with a real Redis server on loopback: each host has its own ledger."""

import functools
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.store import (
    CommonLimits,
    LedgerEntry,
    LedgerError,
    LedgerStore,
    ReservationClaim,
    Settlement,
)
from gateway.store import common_limits as module
from tests.fakes.ports import free_ports
from tests.fakes.worker import PATIENCE_S
from tests.gateway.store.test_shared_ledger import CLOUD, DAY, IN_MEMORY, WORTH, claim, settled

redis = pytest.importorskip("redis")
SERVER = shutil.which("redis-server")
pytestmark = pytest.mark.skipif(SERVER is None, reason="no redis-server is installed")


class Server:
    """A server that keeps nothing on the disk, on the same port after each start."""

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(1)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        assert SERVER is not None
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        argv = [SERVER, *words, "--save", "", "--appendonly", "no"]
        argv += ["--enable-debug-command", "local"]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_listening():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self, *, is_frozen: bool = True) -> None:
        """Stop the process, or let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if is_frozen else signal.SIGCONT)

    def lose_everything(self) -> None:
        self.tell("FLUSHALL")

    def answers(self) -> bool:
        """Whether it answers in 0.1 s."""
        with socket.create_connection(("127.0.0.1", self.port)) as peer:
            peer.settimeout(0.1)
            peer.sendall(b"PING\r\n")
            with suppress(TimeoutError):
                return bool(peer.recv(64))
        return False

    def tell(self, words: str) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as peer:
            peer.sendall(words.encode() + b"\r\n")
            assert peer.recv(64) == b"+OK\r\n"

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    one = Server(tmp_path)
    yield one
    one.stop()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rest after a failure: tests do not wait for it."""
    monkeypatch.setattr(module, "REST_S", 0.0)


def ledger(url: str, path: Path) -> LedgerStore:
    return LedgerStore(path, "USD", common=functools.partial(CommonLimits, url, None, "USD"))


@contextmanager
def hosts(server: Server, folder: Path, count: int = 2) -> Iterator[list[LedgerStore]]:
    with ExitStack() as stack:
        stores = [
            ledger(server.url, folder / f"host{number}" / "ledger") for number in range(count)
        ]
        for store in stores:
            stack.callback(store.close)
            store.look([])
        yield stores


def test_hosts_keep_a_limit_together(server: Server, tmp_path: Path) -> None:
    """What one has reserved is missing for the other, until it is settled for less."""
    with hosts(server, tmp_path) as (one, other):
        assert one.write([claim(1, 4)], [], []) == frozenset()
        assert other.write([claim(number, 3, "b") for number in (1, 2)], [], []) == {2}
        assert other.look([CLOUD])[CLOUD] == (0, 4)
        one.write([], [Settlement(1, settled(2))], [])
        assert other.look([CLOUD])[CLOUD] == (2, 0)
        assert one.look([CLOUD])[CLOUD] == (0, 3)
        assert other.write([claim(4, 5, "c"), claim(5, 1)], [], []) == {5}


def test_a_server_that_lost_its_data_waits_for_the_hosts(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tells its own again when it looks. One that is gone is not waited for."""
    with hosts(server, tmp_path) as (one, other):
        one.write([claim(1, 5)], [], [])
        other.look([])
        server.lose_everything()
        assert other.write([claim(1, 5, "b"), claim(2, 1, "c")], [], []) == {1, 2}
        one.look([])
        assert other.write([claim(3, 5, "b"), claim(4, 1, "c")], [], []) == {4}
        server.lose_everything()
        assert other.write([claim(5, 1, "c")], [], []) == {5}
        monkeypatch.setattr(module, "LOST_S", 0.0)
        assert other.write([claim(6, 5, "c")], [], []) == frozenset()


def test_without_the_server_nothing_under_a_limit_is_sent(server: Server, tmp_path: Path) -> None:
    """What has none, and every end, is written; the server hears of it all once it is back."""
    with hosts(server, tmp_path) as (one, other):
        one.write([claim(1, 4), claim(2, 1)], [], [])
        server.stop()
        free = claim(4, 2)._replace(caps=())
        assert one.write([claim(3, 1), free], [Settlement(1, settled(3))], []) == {3}
        with pytest.raises(
            LedgerError, match="the shared limits: the Redis server cannot be reached"
        ):
            one.look([CLOUD])
        server.start()
        assert other.write([claim(1, 1, "b")], [], []) == {1}
        for store in (one, other):
            store.look([])
        assert other.look([CLOUD])[CLOUD] == (3, 3)
        assert other.write([claim(2, 4, "b"), claim(3, 1, "c")], [], []) == {3}


def test_what_was_told_and_not_written_is_taken_back(server: Server, tmp_path: Path) -> None:
    """All windows are sent again after a transaction that failed."""
    with hosts(server, tmp_path) as (one, other):
        one.write([claim(1, 1)], [], [])
        with pytest.raises(LedgerError):
            one.write([claim(2, 2), claim(1, 2)], [], [])
        assert one.write([claim(3, 1)], [], []) == frozenset()
        assert other.look([CLOUD])[CLOUD] == (0, 2)


def test_a_server_out_of_memory_loses_no_amount(server: Server, tmp_path: Path) -> None:
    """A server out of memory takes no reservation, so requests under a limit wait; settlements are
    kept here meanwhile.
    """
    with hosts(server, tmp_path) as (one, other):
        one.write([claim(1, 4)], [], [])
        server.tell("CONFIG SET maxmemory 1")
        assert one.write([claim(2, 1)], [Settlement(1, settled(3))], []) == {2}
        with pytest.raises(LedgerError, match="the Redis server is out of memory"):
            one.look([CLOUD])
        server.tell("CONFIG SET maxmemory 0")
        one.look([])
        assert other.look([CLOUD])[CLOUD] == (3, 0)
        assert other.write([claim(1, 5, "b"), claim(2, 3, "c")], [], []) == {2}


@pytest.mark.parametrize("way", ["stopped", "slow"])
def test_a_server_that_does_not_answer_in_time_counts_nothing_twice(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The server may run a call after it was given up here. The reservation of the refused request
    stays there until the next exchange corrects it.
    """
    monkeypatch.setattr(module, "TIMEOUT_S", 0.2)
    with hosts(server, tmp_path) as (one, other):
        one.write([claim(1, 2)], [], [])
        if way == "stopped":
            server.freeze()
        else:
            busy = socket.create_connection(("127.0.0.1", server.port))
            busy.sendall(b"DEBUG SLEEP 5\r\n")
            while server.answers():
                pass
        assert one.write([claim(2, 3)], [], []) == {2}
        with pytest.raises(LedgerError, match=r"did not answer in .* it is stopped or busy"):
            one.look([CLOUD])
        if way == "stopped":
            server.freeze(is_frozen=False)
        else:
            assert busy.recv(64) == b"+OK\r\n"
            busy.close()
        one.look([])
        assert other.look([CLOUD])[CLOUD] == (0, 2)
        assert other.write([claim(1, 5, "b"), claim(2, 4, "c")], [], []) == {2}


class HostsMachine(RuleBasedStateMachine):
    """Two hosts, one with two processes; the server stops or forgets at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None)
        self.server = Server(Path(self.folder.name))
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(module, "REST_S", 0.0)
        self.patch.setattr(module, "LOST_S", 1e9)
        self.is_up = True
        self.stores = [self._open(at) for at in range(3)]
        self.open: list[dict[int, int]] = [{}, {}, {}]
        self.charged = 0
        self.next = 1
        self._look_all()

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        self.server.stop()
        self.patch.undo()
        self.folder.cleanup()

    @rule(at=st.integers(0, 2), costs=st.lists(st.integers(1, 4), max_size=4))
    def reserve(self, at: int, costs: list[int]) -> None:
        """What is admitted fits, whatever the server knows."""
        claims = [
            claim(self.next + number, cost, str(self.next)) for number, cost in enumerate(costs)
        ]
        self.next += len(claims)
        refused = self.stores[at].write(claims, [], [])
        for one in claims:
            if one.number not in refused:
                assert self._most() + one.worst.cost <= WORTH
                self.open[at][one.number] = one.worst.cost
        assert self.is_up or len(refused) == len(claims)

    @precondition(lambda self: any(self.open))
    @rule(data=st.data(), share=st.integers(0, 4))
    def settle(self, data: st.DataObject, share: int) -> None:
        """For all of it, a part, or nothing."""
        at = data.draw(st.sampled_from([at for at in range(3) if self.open[at]]))
        number = data.draw(st.sampled_from(sorted(self.open[at])))
        cost = self.open[at].pop(number) * share // 4
        entry = LedgerEntry(DAY, "", "m", "cloud", True, True, 1, 1, 0, 1, cost)
        self.stores[at].write([], [Settlement(number, entry if share else None)], [])
        self.charged += cost

    @rule(at=st.integers(0, 2))
    def die(self, at: int) -> None:
        """Another process takes its place."""
        self.stores[at].close()
        self.charged += sum(self.open[at].values())
        self.open[at].clear()
        self.stores[at] = self._open(at)

    @rule()
    def lose(self) -> None:
        """All that the server knew."""
        if self.is_up:
            self.server.lose_everything()

    @rule()
    def stop_or_start(self) -> None:
        """With what it knew."""
        (self.server.stop if self.is_up else self.server.start)()
        self.is_up = not self.is_up

    @rule()
    def look(self) -> None:
        """Twice a second, in fact. Then all that is left can be spent."""
        if not self.is_up:
            return
        self._look_all()
        if left := WORTH - self._most():
            claims = self._claims([left] if left <= WORTH // 2 else [WORTH // 2, left - WORTH // 2])
            assert self.stores[0].write(claims, [], []) == frozenset()
            self.stores[0].write([], [Settlement(one.number, None) for one in claims], [])

    @invariant()
    def the_limit_holds(self) -> None:
        """The limit holds, whatever was lost."""
        assert self._most() <= WORTH

    def _claims(self, costs: list[int]) -> list[ReservationClaim]:
        """Each of a key of its own."""
        first, self.next = self.next, self.next + len(costs)
        return [claim(first + at, cost, f"k{first + at}") for at, cost in enumerate(costs)]

    def _most(self) -> int:
        return self.charged + sum(sum(held.values()) for held in self.open)

    def _open(self, at: int) -> LedgerStore:
        return ledger(self.server.url, Path(self.folder.name) / f"host{at // 2}" / "ledger")

    def _look_all(self) -> None:
        for _ in range(2):
            for store in self.stores:
                store.look([])


TestHosts = HostsMachine.TestCase
TestHosts.settings = settings(stateful_step_count=20)


def test_the_last_cause_is_told() -> None:
    """The error names the last cause, also during the pause after a failure, and without the
    server's address or password.
    """
    with TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            server.tell("CONFIG SET requirepass right")
            limits = CommonLimits(server.url, "wrong", "USD", "host")
            for _ in range(2):
                with pytest.raises(module.StoreUnreachable, match="Redis") as caught:
                    limits.is_known()
                assert caught.value.cause == "the Redis server refuses the password"
            limits.close()
            limits = CommonLimits(server.url, None, "USD", "host")
            server.stop()
            for _ in range(2):
                with pytest.raises(module.StoreUnreachable) as caught:
                    limits.is_known()
                assert caught.value.cause == "the Redis server cannot be reached"
            limits.close()
        finally:
            server.stop()
