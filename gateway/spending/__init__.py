"""Spending: what requests cost and may cost (totals, prices, limits, ledger writer); rate limits.

Must not know SQL (`gateway.store`) or HTTP.
"""

from gateway.spending.conversation_limits import UNCAPPED_TOKENS, most_tokens
from gateway.spending.limits import LimitWindow, Period, Saving, SpendingFigures, day_of, window_of
from gateway.spending.prices import MICRO, show_amount, to_micro
from gateway.spending.rate_limits import Charge, RateLimits
from gateway.spending.refusals import soonest_refusal
from gateway.spending.spending import Bill, Spending
from gateway.spending.thresholds import Thresholds
