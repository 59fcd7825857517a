"""What counts as a proof that an engine answers."""

import pytest

from protocol.messages import Finished, FromWorker, Rejected, Submit, TokenItem, Tokens
from protocol.probing import PROBE_TOKENS
from protocol.tokens import pack_tokens
from workers.ipc.health_probe import HealthProbe

ID = b"c" * 16


def tokens(count: int) -> Tokens:
    """One frame with so many new tokens of the health probe."""
    return Tokens(1, (TokenItem(ID, 0, 0, pack_tokens(range(count))),))


def test_all_its_tokens_and_an_end_are_an_answer() -> None:
    """Tokens alone prove nothing; the end after them does."""
    health_probe = HealthProbe(ID, "m")
    assert isinstance(health_probe.request, Submit)
    assert health_probe.request.sampling.max_tokens == PROBE_TOKENS
    for _ in range(PROBE_TOKENS):
        health_probe.receive(tokens(1))
    assert not health_probe.answered
    health_probe.receive(Finished(ID, 0, "length", 4, 0, PROBE_TOKENS))
    assert health_probe.answered
    assert health_probe.failure is None


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
    """An engine that ends the health probe without its tokens is not ready."""
    health_probe = HealthProbe(ID, "m")
    health_probe.receive(message)
    assert not health_probe.answered
    assert health_probe.failure is not None
    assert "health probe" in health_probe.failure
