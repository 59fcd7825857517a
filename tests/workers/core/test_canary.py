"""What counts as a proof that an engine answers."""

import pytest

from protocol.messages import Finished, FromWorker, Rejected, TokenItem, Tokens
from protocol.tokens import pack_tokens
from workers.core.canary import CANARY_TOKENS, Canary

ID = b"c" * 16


def tokens(count: int) -> Tokens:
    """One frame with so many new tokens of the canary."""
    return Tokens(1, (TokenItem(ID, 0, 0, pack_tokens(range(count))),))


def test_all_its_tokens_and_an_end_are_an_answer() -> None:
    """Tokens alone prove nothing; the end after them does."""
    canary = Canary(ID, "m")
    assert canary.submit.sampling.max_tokens == CANARY_TOKENS
    for _ in range(CANARY_TOKENS):
        canary.heard(tokens(1))
    assert not canary.answered
    canary.heard(Finished(ID, 0, "length", 4, 0, CANARY_TOKENS))
    assert canary.answered
    assert canary.failure is None


@pytest.mark.parametrize(
    "message",
    [
        Finished(ID, 0, "length", 4, 0, 4),
        Finished(ID, 0, "error", 4, 0, 0, detail="boom"),
        Rejected(ID, 0, "busy", "full"),
    ],
    ids=["no tokens", "error", "rejected"],
)
def test_anything_else_is_a_failure_with_its_reason(message: FromWorker) -> None:
    """An engine that ends the canary without its tokens is not ready."""
    canary = Canary(ID, "m")
    canary.heard(message)
    assert not canary.answered
    assert canary.failure is not None
    assert "canary" in canary.failure
