"""What requests to providers cost and may cost: books, prices, limits, and the ledger's writer.

Must not know SQL (`gateway.store`) or HTTP.
"""

from gateway.spending.limits import Period, SpendingFigures, Window, day_of, window_of
from gateway.spending.prices import MICRO, show_amount, to_micro
from gateway.spending.refusals import soonest_refusal
from gateway.spending.spending import Bill, Spending
from gateway.spending.thresholds import Passed, Thresholds

__all__ = [
    "MICRO",
    "Bill",
    "Passed",
    "Period",
    "Spending",
    "SpendingFigures",
    "Thresholds",
    "Window",
    "day_of",
    "show_amount",
    "soonest_refusal",
    "to_micro",
    "window_of",
]
