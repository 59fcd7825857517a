"""Workers of one card that take turns: which of them are resident, and when they change places.

Owns the decision (`policy.py`) and the messages between the supervisors of a host (`messages.py`).
Pure: times are arguments. Must not know processes, sockets or how an engine sleeps.
"""

from workers.turns.messages import MemberReport, Order, decode_order, decode_report, encode_line
from workers.turns.policy import (
    MAX_PATIENCE_ROUNDS,
    MIN_PATIENCE_S,
    Card,
    Member,
    MemberState,
    Plan,
    TurnPolicy,
    bytes_in_words,
)

__all__ = [
    "MAX_PATIENCE_ROUNDS",
    "MIN_PATIENCE_S",
    "Card",
    "Member",
    "MemberReport",
    "MemberState",
    "Order",
    "Plan",
    "TurnPolicy",
    "bytes_in_words",
    "decode_order",
    "decode_report",
    "encode_line",
]
