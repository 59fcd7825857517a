"""The checker of each API's streams, by the path of the request.

Every fake that reads a stream finds its checker here.
"""

from tests.fakes.messages_checker import MessagesChecker
from tests.fakes.responses_checker import ResponsesChecker
from tests.fakes.stream_checker import StreamChecker

AnyChecker = StreamChecker | MessagesChecker | ResponsesChecker


def checker_of(path: str, *, counts_along: bool = False) -> AnyChecker | None:
    """What checks the streams at `path`; None where streams are no answers."""
    path = path.partition("?")[0]
    if path.endswith("/messages"):
        return MessagesChecker()
    if path.endswith("/responses"):
        return ResponsesChecker()
    return StreamChecker(counts_along=counts_along) if path.endswith("completions") else None
