"""One way through the gateway: few files, few hand-overs."""

from tests.e2e.one_way import trace_one_way

MAX_FILES_TO_SUBMIT = 55
MAX_CALLS_TO_SUBMIT = 215
"""206 were counted, in 51 files; what is left is for ticks."""
MAX_FILES_TO_FIRST_BYTE = 25
MAX_FILES_OF_A_TOKEN = 8


def test_a_request_takes_the_short_way() -> None:
    """The second turn of a streamed conversation with warm caches."""
    way = trace_one_way()
    assert len(way.to_submit.files) <= MAX_FILES_TO_SUBMIT, str(way)
    assert len(way.to_submit.calls) <= MAX_CALLS_TO_SUBMIT, str(way)
    assert len(way.to_first_byte.files) <= MAX_FILES_TO_FIRST_BYTE, str(way)
    assert len(way.token.files) <= MAX_FILES_OF_A_TOKEN, str(way)
