"""What the first rank tells the others: each call of its runner, in order.

Owns the frames on the connection between two processes of one engine. All run the same code, and
the others trust the first rank, so Python's own pickling carries plans. The first rank trusts
nobody: what it reads is numbers. Must not know runners, nor processes.
"""

import pickle
import socket
import struct
from array import array
from typing import Final, NamedTuple, TypeAlias

from config import WorkerConfig
from protocol.messages import Grammar
from workers.scheduler import StepPlan

_LENGTH: Final = struct.Struct("<Q")
_REPORT: Final = struct.Struct("<QQ")


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


class DigestReport(NamedTuple):
    """From a follower: the digest of all tokens that its first `steps` steps sampled."""

    steps: int
    digest: int


Call: TypeAlias = BeginRank | LaunchCall | CollectCall | PrepareCall


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

    def report(self, report: DigestReport) -> None:
        """Write a report to the first rank. Raises `OSError` if it is gone."""
        self._socket.sendall(_REPORT.pack(*report))

    def take_report(self) -> DigestReport | None:
        """The next report; None at the end of the other process."""
        data = self._read(_REPORT.size)
        return None if data is None else DigestReport(*_REPORT.unpack(data))

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
