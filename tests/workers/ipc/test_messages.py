"""Control messages: round trip, and any other bytes are a `WireError`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import WireError
from protocol.messages import EngineFacts
from protocol.wire import peek_tag
from workers.ipc.messages import (
    FIRST_CONTROL_TAG,
    ClearCache,
    Cleared,
    Drained,
    DrainEngine,
    DropLink,
    EngineFailed,
    EngineReady,
    EngineStart,
    FromEngine,
    Heartbeat,
    Shutdown,
    StartProgress,
    ToEngine,
    decode_from_engine,
    decode_to_engine,
    encode_control,
)

FACTS = EngineFacts("synthetic", "none", "none", 4096, 32, 1024, 4, 256, bytes(16))


@pytest.mark.parametrize(
    "message",
    [EngineStart(b"{}", 3), DropLink(7), Shutdown(), DrainEngine(), ClearCache()],
    ids=repr,
)
def test_messages_to_the_engine_round_trip(message: ToEngine) -> None:
    """What the supervisor says arrives, under a tag that no wire message has."""
    payload = encode_control(message)
    assert decode_to_engine(payload) == message
    assert (peek_tag(payload) or 0) >= FIRST_CONTROL_TAG


@pytest.mark.parametrize(
    "message",
    [
        EngineReady(FACTS, "/models/x", trouble="it goes on without"),
        Heartbeat(9, busy=True, phase="compile", longest_step_s=0.5),
        StartProgress("weights", 0.5, "2 of 4"),
        EngineFailed("no such file"),
        Drained(),
        Cleared(2),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_from_the_engine_round_trip(message: FromEngine) -> None:
    """What the engine says arrives, under a tag that no wire message has."""
    payload = encode_control(message)
    assert decode_from_engine(payload) == message
    assert (peek_tag(payload) or 0) >= FIRST_CONTROL_TAG


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_wire_error(payload: bytes) -> None:
    """Garbage raises nothing but `WireError`."""
    for decode in (decode_to_engine, decode_from_engine):
        try:
            decode(payload)
        except WireError as error:
            assert "not a control message" in str(error)
