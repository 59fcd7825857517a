"""The frames by which the first rank sends each call of its runner to the other ranks, in order.

Owns the frames on the connection between two processes of one engine. All run the same code, and
the others trust the first rank, so Python's own pickling carries plans. The first rank trusts
nobody: what it reads is numbers, of 64 bits with a sign. Must not know runners, nor processes.
"""

import pickle
import socket
import struct
from array import array
from typing import Final, NamedTuple, TypeAlias

from config import WorkerConfig
from protocol.messages import Grammar
from workers.scheduler import StepPlan
from workers.scheduler.tier import Transfer

_LENGTH: Final = struct.Struct("<Q")
_REPORT: Final = struct.Struct("<II")
_MOST_NUMBERS: Final = 2**20
"""A report has fewer: one for each page of a transfer."""


class BeginRank(NamedTuple):
    """Load as this `rank` of the configuration's engine, and meet the others in `folder`."""

    config: WorkerConfig
    rank: int
    folder: str


class LaunchCall(NamedTuple):
    """Launch the plan. `grammars` are those of the sequences that it starts, by sequence, with the
    outputs behind which each stands; the plan itself has none.
    """

    plan: StepPlan
    grammars: dict[int, tuple[Grammar, "array[int]"]]


class CollectCall(NamedTuple):
    """Collect the step that was launched first."""


class PrepareCall(NamedTuple):
    """Make later steps faster, as `Runner.prepare` says."""

    pending_only: bool


class TransferCall(NamedTuple):
    """Begin these copies from or to the host, behind the steps that are launched."""

    transfer: Transfer


class DigestReport(NamedTuple):
    """From a follower: the digest of all tokens that its first `steps` steps sampled."""

    steps: int
    digest: int


class TransferredReport(NamedTuple):
    """From a follower: the transfer `number` is over; `sums` are the checksums of its pages, in the
    order of the pages.
    """

    number: int
    sums: tuple[int, ...]


class OpenedReport(NamedTuple):
    """From a follower: these pages of its host memory can be used; none, when no more will be."""

    start: int
    stop: int


Call: TypeAlias = BeginRank | LaunchCall | CollectCall | PrepareCall | TransferCall
Report: TypeAlias = DigestReport | TransferredReport | OpenedReport


class CallChannel:
    """Calls over a connection, and reports the other way. One thread may write, and one read."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, call: Call) -> None:
        """Write one call. Raises `OSError` if the other process is gone."""
        data = pickle.dumps(call, pickle.HIGHEST_PROTOCOL)
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def take(self) -> Call | None:
        """The next call; None at the end of the other process."""
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        data = self._read(*_LENGTH.unpack(head))
        if data is None:
            return None
        found: Call = pickle.loads(data)  # noqa: S301 - from our own parent or child
        return found

    def report(self, report: Report) -> None:
        """Write a report to the first rank. Raises `OSError` if it is gone."""
        match report:
            case DigestReport():
                kind, numbers = 0, array("q", report)
            case OpenedReport():
                kind, numbers = 1, array("q", report)
            case TransferredReport(number, sums):
                kind, numbers = 2, array("q", (number, *sums))
        self._socket.sendall(_REPORT.pack(kind, len(numbers)) + numbers.tobytes())

    def take_report(self) -> Report | None:
        """The next report; None at the end of the other process, or of what makes sense."""
        head = self._read(_REPORT.size)
        if head is None:
            return None
        kind, count = _REPORT.unpack(head)
        data = self._read(8 * count) if count < _MOST_NUMBERS else None
        if data is None:
            return None
        numbers = array("q", data)
        match kind, count:
            case 0, 2:
                return DigestReport(*numbers)
            case 1, 2:
                return OpenedReport(*numbers)
            case 2, _ if count:
                return TransferredReport(numbers[0], tuple(numbers[1:]))
        return None

    def _read(self, num_bytes: int) -> bytes | None:
        data = bytearray()
        while len(data) < num_bytes:
            try:
                part = self._socket.recv(num_bytes - len(data))
            except (ConnectionResetError, TimeoutError):  # it died, or its host is gone
                return None
            if not part:
                return None
            data += part
        return bytes(data)
