"""What the supervisors of a card say to the one that decides, and its orders.

Owns the messages and their form: one line of JSON each. Ages are relative, because every process
has a clock of its own. Must not know sockets.
"""

from typing import Annotated, Literal, TypeVar

import msgspec

from protocol.reading import decoded
from workers.turns.policy import MemberState

Change = Literal["wake", "sleep"]

_T = TypeVar("_T")

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class MemberReport(msgspec.Struct, frozen=True):
    """A worker, as `Member` has it; each time is how long ago it was. `order` is the number of the
    last order that it has taken.
    """

    name: str
    state: MemberState
    is_always: bool = False
    awake_bytes: Count | None = None
    asleep_bytes: Count = 0
    wake_s: Seconds | None = None
    sleep_s: Seconds | None = None
    waiting: Count = 0
    running: Count = 0
    waited_s: Seconds = 0.0
    oldest_ago_s: Seconds | None = None
    since_ago_s: Seconds = 0.0
    idle_ago_s: Seconds = 0.0
    idle_s: Seconds | None = None
    wish: Change | None = None
    waits_s: Seconds = 0.0
    wants_look: bool = False
    order: Count = 0


class Order(msgspec.Struct, frozen=True):
    """To a worker: wake or fall asleep now (`number` counts these); or, without `do`, news.
    `due_s` is the forecast of the seconds until it serves, 0 if unknown; `why` says what keeps it
    from waking.
    """

    number: Count
    do: Change | None = None
    due_s: Seconds = 0.0
    why: str = ""


_encoder = msgspec.json.Encoder()
_reports: msgspec.json.Decoder[MemberReport] = msgspec.json.Decoder(MemberReport)
_orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)


def encode_line(message: MemberReport | Order) -> bytes:
    """The message as one line, with its newline."""
    return _encoder.encode(message) + b"\n"


def decode_report(line: bytes) -> MemberReport:
    """Raises `WireError` for anything else."""
    return decoded(_reports, line, "a message about turns")


def decode_order(line: bytes) -> Order:
    """Raises `WireError` for anything else."""
    return decoded(_orders, line, "a message about turns")
