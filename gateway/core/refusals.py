"""Why a provider may not be asked, in words for the client.

Owns the texts of spending refusals, and which of several the client is told. Must not know amounts:
what the operator pays is not the client's business.
"""

from collections.abc import Sequence
from typing import Final

from gateway.core.errors import ApiError, output_cap_required, spending_limit_reached
from gateway.core.spending import MAX_RETRY_AFTER_S, LimitReached, Refusal

MENDING_S: Final = 60
"""What a client can mend by itself is put off for shorter waits only: up to a minute the official
clients wait on their own, while a 400 ends their request.
"""


def refusal_error(refusal: Refusal, provider: str) -> ApiError:
    """What a client is told if `provider` is the only one."""
    if isinstance(refusal, LimitReached):
        kind, name = refusal.account
        whose = f"provider `{name}`" if kind == "provider" else f"API key `{name}`"
        reset = refusal.resets_at.strftime("%Y-%m-%d %H:%M UTC")
        text = f"The {refusal.period} spending limit of {whose} is reached; it resets at {reset}."
        return spending_limit_reached(text, refusal.retry_after_s)
    if refusal.missing == "output":
        return output_cap_required(provider)
    text = f"A spending limit applies, and the price at provider `{provider}` is not configured."
    return spending_limit_reached(text, MAX_RETRY_AFTER_S)


def easiest(refusals: Sequence[ApiError]) -> ApiError:
    """The one answer when every provider of a chain was refused: the one that is over soonest, with
    all reasons, its own first.
    """
    soonest = min(refusals, key=_wait_s)
    reasons = " ".join(dict.fromkeys(error.message for error in (soonest, *refusals)))
    return ApiError(soonest.status, reasons, code=soonest.code, retry_after_s=soonest.retry_after_s)


def _wait_s(error: ApiError) -> int:
    return MENDING_S if error.retry_after_s is None else error.retry_after_s
