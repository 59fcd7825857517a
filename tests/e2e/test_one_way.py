"""One way through the gateway: few files, few hand-overs."""

from tests.e2e.one_way import trace_one_way

MAX_TO_SUBMIT = (45, 200)
MAX_TO_FIRST_BYTE = (25, 120)
MAX_TOKEN = (8, 15)
"""Files and calls."""


def test_a_request_takes_the_short_way() -> None:
    """The second turn of a streamed conversation with warm caches."""
    way = trace_one_way()
    limits = (MAX_TO_SUBMIT, MAX_TO_FIRST_BYTE, MAX_TOKEN)
    for phase, (max_files, max_calls) in zip(way.phases().values(), limits, strict=True):
        assert len(phase.files) <= max_files, str(way)
        assert len(phase.calls) <= max_calls, str(way)
