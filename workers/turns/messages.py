"""What the supervisors of a card say to the one that decides, and its orders.

Owns the messages and their form: one line of JSON each. Every process has a clock of its own, so in
a line the times of a `Member` are relative to the moment in which it was written. Must not know
sockets.
"""

import msgspec

from protocol.messages import Count
from protocol.reading import decoded
from workers.turns.policy import Change, Member, Seconds


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
_members: msgspec.json.Decoder[Member] = msgspec.json.Decoder(Member)
_orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)


def encode_order(order: Order) -> bytes:
    """The order as one line, with its newline."""
    return _encoder.encode(order) + b"\n"


def decode_order(line: bytes) -> Order:
    """Raises `WireError` for anything else."""
    return decoded(_orders, line, "a message about turns")


def encode_report(member: Member, now: float) -> bytes:
    """The worker, as it is at `now` on its supervisor's clock, as one line with its newline."""
    return _encoder.encode(_shifted(member, -now)) + b"\n"


def decode_report(line: bytes, now: float) -> Member:
    """The worker on the clock of the reader, who has the line at `now`. Raises `WireError` for
    anything else.
    """
    return _shifted(decoded(_members, line, "a message about turns"), now)


def _shifted(member: Member, by_s: float) -> Member:
    oldest_at = member.oldest_at
    return msgspec.structs.replace(
        member,
        oldest_at=None if oldest_at is None else oldest_at + by_s,
        since=member.since + by_s,
        idle_since=member.idle_since + by_s,
        must_wait_until=member.must_wait_until + by_s,
    )
