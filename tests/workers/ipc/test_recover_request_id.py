"""A bad submission still tells whose it is, if it can."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from protocol import wire
from tests.fakes.gateway_end import submission
from workers.ipc.framing import recover_request_id

ID = b"s" * 16


def test_a_submission_with_bad_fields_is_found() -> None:
    """The request id and attempt come from the first fields, whatever follows."""
    frame = msgspec.msgpack.encode([2, ID, 3, {"not": "a model"}])
    assert recover_request_id(frame) == (ID, 3)
    assert recover_request_id(wire.encode(submission(ID))) == (ID, 1)


@given(st.binary(max_size=100))
def test_garbage_has_no_request(tail: bytes) -> None:
    """Any bytes give ids or None, never an exception."""
    for frame in (tail, b"\x9a\x02" + tail):
        found = recover_request_id(frame)
        assert found is None or len(found[0]) == 16
