"""What can still be read of a submission that is not one.

Owns finding the request that a bad frame is about, so that its sender gets an answer instead of
silence. Must not know sockets.
"""

import msgspec

from protocol.ids import ID_BYTES
from protocol.messages import Submit
from protocol.wire import peek_tag, tag_of


def recover_request_id(frame: bytes) -> tuple[bytes, int] | None:
    """The request id and attempt of a frame that begins like a `Submit`, if it shows them."""
    if peek_tag(frame) != tag_of(Submit):
        return None
    try:
        fields = msgspec.msgpack.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    match fields:
        case [_, bytes(request_id), int(attempt), *_] if (
            len(request_id) == ID_BYTES and 0 <= attempt < 2**63
        ):
            return request_id, attempt
        case _:
            return None
