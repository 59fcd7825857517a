"""Limits of conversations: what is held for a request, and the error for one that is refused.

Owns the texts for agents, which name what was reached. Must not know disks or clocks.
"""

from typing import Final

from config import ConversationLimitsConfig
from gateway.api import ApiError, ChatRequest, busy
from gateway.spending.prices import prompt_bound, show_amount, to_micro
from gateway.store import ConversationLimits, SumReached

UNCAPPED_TOKENS: Final = 8192
"""The longest answer of a request without a cap in a conversation with a limit of tokens: without
one nothing would bound what it may use.
"""
_RETRY_S: Final = 5


def ledger_limits(limits: ConversationLimitsConfig) -> ConversationLimits:
    """The limits in the units of the ledger."""
    return ConversationLimits(
        tokens=limits.tokens,
        cost=None if limits.money is None else to_micro(limits.money),
        turns=limits.turns,
        seconds=None if limits.minutes is None else 60 * limits.minutes,
    )


def most_tokens(request: ChatRequest) -> int:
    """The most tokens that the prompt and all answers of a request with a cap can have."""
    return prompt_bound(request) + (request.max_tokens or UNCAPPED_TOKENS) * request.n


def limit_error(reached: SumReached, currency: str) -> ApiError:
    """The error for the agent. A limit that only requests under way hold is a 429, on which clients
    wait; one that is reached is a 422, which they show.
    """
    if reached.is_for_others and reached.what != "seconds":
        text = "Requests under way hold what is left of this conversation's limit of"
        return busy(f"{text} {_shown(reached.what, reached.limit, currency)}.", _RETRY_S)
    limit, used = (
        _shown(reached.what, amount, currency) for amount in (reached.limit, reached.used)
    )
    text = f"This conversation has reached its limit of {limit}: {used} are used"
    if reached.used < reached.limit and reached.wanted:
        wanted = _shown(reached.what, reached.wanted, currency)
        text += f", and this request may need {wanted}"
    text += ". Begin a new conversation, or ask the operator to raise [limits.conversation]."
    code = "conversation_limit_reached"
    return ApiError(422, text, code=code, error_type=code)


def word_of(reached: SumReached) -> str:
    """The name of the reached limit in the configuration."""
    return {"seconds": "minutes", "cost": "money"}.get(reached.what, reached.what)


def _shown(what: str, amount: float, currency: str) -> str:
    if what == "seconds":
        return f"{amount / 60:.1f} minutes"
    if what == "cost":
        return f"{show_amount(int(amount), 4)} {currency}"
    return f"{int(amount):,} {what}"
