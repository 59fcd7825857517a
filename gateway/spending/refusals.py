"""Spending refusals as errors for clients.

Owns their texts, and the choice between several. Must not name amounts: they are for the operator
alone.
"""

import math
from collections.abc import Sequence
from typing import Final

from gateway.api import (
    ApiError,
    ChargedBy,
    field_without_price,
    output_cap_required,
    request_too_costly,
    spending_limit_reached,
)
from gateway.spending.limits import MAX_RETRY_AFTER_S, OverLimit, Refusal

_AT_ONCE: Final = ("output_cap_required", "field_without_price")
CAP_RETRY_S: Final = 60
"""A refusal that another body avoids ranks as a wait of this length: the official clients wait up
to a minute on their own, while a 400 ends their request.
"""


def refusal_error(
    refusal: Refusal, provider: str, cap: int, charged_by: ChargedBy = "answer"
) -> ApiError:
    """The error if `provider` is the only one. `cap`: the largest cap on the output (tokens) with
    which the same request would fit now; 0 if there is none.
    """
    if isinstance(refusal, OverLimit):
        return _over_limit(refusal, cap)
    if refusal.missing == "output":
        return output_cap_required(
            f"A spending limit applies to provider `{provider}`, and nothing bounds what this "
            f"answer can cost: send a cap of at most {cap} tokens on its output."
        )
    if refusal.missing == "field":
        return field_without_price(
            f"A spending limit applies to provider `{provider}`, and no price covers what "
            f"'{refusal.name}' may cost there: send the request without it."
        )
    what = "the price of such a request" if charged_by == "request" else "the price"
    text = f"A spending limit applies, and {what} at provider `{provider}` is not configured."
    return spending_limit_reached(text, MAX_RETRY_AFTER_S)


def _over_limit(refusal: OverLimit, cap: int) -> ApiError:
    window = refusal.window
    kind, name = window.account
    whose = f"provider `{name}`" if kind == "provider" else f"API key `{name}`"
    limit = f"{window.period} spending limit of {whose}"
    if window.never_holds(refusal.cost):
        text = f"This request could cost more than the whole {limit}"
        if cap:
            return output_cap_required(f"{text}: send a cap of at most {cap} tokens on its output.")
        return request_too_costly(f"{text}, and no cap on its output would make it fit now.")
    if window.obstacle(refusal.cost) == "others":
        text = f"Requests under way hold so much of the {limit} that this one may not fit."
    else:
        state = "is reached" if window.is_spent else "leaves less than this request could cost"
        text = f"The {limit} {state}; it resets at {refusal.resets_at:%Y-%m-%d %H:%M} UTC."
    if cap:
        text += f" With a cap of at most {cap} tokens on its output it fits now."
    return spending_limit_reached(text, refusal.retry_after_s)


def soonest_refusal(refusals: Sequence[ApiError]) -> ApiError:
    """The error when every provider of a chain refuses: the refusal that ends soonest, with the
    reasons of all, its own first.
    """
    soonest = min(refusals, key=_wait_s)
    reasons = " ".join(dict.fromkeys(error.message for error in (soonest, *refusals)))
    return ApiError(soonest.status, reasons, code=soonest.code, retry_after_s=soonest.retry_after_s)


def _wait_s(error: ApiError) -> float:
    if error.retry_after_s is not None:
        return error.retry_after_s
    return CAP_RETRY_S if error.code in _AT_ONCE else math.inf
