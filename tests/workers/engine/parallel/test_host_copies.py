"""The host cache of an engine of several ranks: a transfer is over when it is over at each."""

import json
import queue
import socket
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.bounded_run import run_bounded
from tests.fakes.tiny_families import write_family
from tests.workers.engine.parallel.host_answers import host_answers
from workers.engine.parallel.calls import (
    CallChannel,
    DigestReport,
    OpenedReport,
    Report,
    TransferCall,
    TransferredReport,
)
from workers.engine.parallel.copies import RankReport, RanksCopies, joined_sum
from workers.scheduler.tier import Copy, Transfer, Transferred

BOUND_S = 300
HOST_BYTES = 64 * 2**20
LOAD = Transfer(7, is_load=True, copies=(Copy(3, (5,)), Copy(0, (6, 8), is_state=True)))


class OwnCopies:
    """Copies of one rank that are over when the test says so."""

    def __init__(self) -> None:
        self.begun: list[Transfer] = []
        self.done: list[Transferred] = []
        self.opened: list[range] = []

    def begin(self, transfer: Transfer) -> None:
        self.begun.append(transfer)

    def take_done(self) -> list[Transferred]:
        done, self.done = self.done, []
        return done

    def take_opened(self) -> list[range]:
        opened, self.opened = self.opened, []
        return opened

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("family", ["llama3", pytest.param("qwen3_5", marks=pytest.mark.slow)])
def test_two_ranks_find_on_the_host_what_one_does(tmp_path: Path, family: str) -> None:
    """Two ranks find on the host what one does, and preempted sequences continue from there."""
    write_family(tmp_path, family, vocab_size=152)
    none, one = (host_answers(tmp_path, 1, size) for size in (0, HOST_BYTES))
    command = [sys.executable, "-m", "tests.workers.engine.parallel.host_answers", str(tmp_path)]
    done = run_bounded([*command, "2", str(HOST_BYTES)], BOUND_S)
    assert done.returncode == 0, done.stderr[-2000:]
    two: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert two["tokens"] == one["tokens"] == none["tokens"]
    assert two["loaded"] > 0
    assert two["found"] > none["found"]
    assert two["preempted"] > 0


def test_a_transfer_is_over_when_it_is_over_at_all_ranks() -> None:
    told: list[TransferCall] = []
    reports: queue.SimpleQueue[RankReport] = queue.SimpleQueue()
    own = OwnCopies()
    copies = RanksCopies(own, 2, told.append, reports)
    copies.begin(LOAD)
    assert (told, own.begun) == ([TransferCall(LOAD)], [LOAD])
    reports.put((2, TransferredReport(7, (31, 32, 33))))
    own.done = [Transferred(7, ((11,), (12, 13)))]
    assert copies.take_done() == []
    reports.put((1, TransferredReport(7, (21, 22, 23))))
    expected = [joined_sum(parts) for parts in ((11, 21, 31), (12, 22, 32), (13, 23, 33))]
    assert copies.take_done() == [Transferred(7, ((expected[0],), (expected[1], expected[2])))]
    assert copies.take_done() == []


def test_pages_are_open_when_they_are_open_at_all_ranks() -> None:
    reports: queue.SimpleQueue[RankReport] = queue.SimpleQueue()
    own = OwnCopies()
    copies = RanksCopies(own, 1, lambda _: None, reports)
    own.opened = [range(4), range(4, 6), range(0)]
    assert copies.take_opened() == []
    reports.put((1, OpenedReport(4, 6)))
    assert copies.take_opened() == [range(4, 6)]
    reports.put((1, OpenedReport(0, 4)))
    reports.put((1, OpenedReport(0, 0)))
    assert copies.take_opened() == [range(4), range(0)]


def test_a_page_that_changed_at_any_rank_has_another_checksum() -> None:
    parts = [-(2**63), 5, 2**63 - 1]
    whole = joined_sum(parts)
    assert -(2**63) <= whole < 2**63
    for rank in range(3):
        assert joined_sum([*parts[:rank], parts[rank] ^ 1, *parts[rank + 1 :]]) != whole
    assert joined_sum([5, *parts[:1], *parts[2:]]) != whole


@pytest.mark.parametrize(
    "report",
    [
        DigestReport(100, 2**32 - 1),
        OpenedReport(0, 17),
        TransferredReport(3, (-(2**63), 2**63 - 1)),
        TransferredReport(4, ()),
    ],
)
def test_reports_come_as_they_were_sent(report: Report) -> None:
    ours, theirs = socket.socketpair()
    CallChannel(theirs).report(report)
    found = CallChannel(ours).take_report()
    assert (type(found), found) == (type(report), report)
    theirs.close()
    assert CallChannel(ours).take_report() is None
    ours.close()


@pytest.mark.parametrize(("kind", "count"), [(0, 3), (1, 1), (2, 0), (3, 2), (2, 2**31)])
def test_what_is_no_report_ends_the_reading(kind: int, count: int) -> None:
    """What is no report ends the reading, before it is read if it is too long."""
    ours, theirs = socket.socketpair()
    theirs.sendall(array("I", (kind, count)).tobytes() + bytes(8 * min(count, 4)))
    assert CallChannel(ours).take_report() is None
    theirs.close()
    ours.close()
