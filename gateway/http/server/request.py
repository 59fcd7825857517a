"""One request as it arrives.

Owns its head and the part of its body that the app has not taken yet. Must not know where the
bytes come from.
"""

from urllib.parse import unquote

from gateway.api import ApiError

Headers = list[tuple[bytes, bytes]]


class Request:
    """A request whose head is complete. `error` is why the rest of its body will never come."""

    __slots__ = (
        "error",
        "expects_continue",
        "headers",
        "is_complete",
        "keeps_alive",
        "method",
        "num_body_bytes",
        "num_waiting_bytes",
        "parts",
        "target",
        "version",
    )

    def __init__(
        self, method: str, target: bytes, headers: Headers, version: str, *, keeps_alive: bool
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.version = version
        self.keeps_alive = keeps_alive
        self.expects_continue = False
        self.is_complete = False
        self.error: ApiError | None = None
        self.parts: list[bytes] = []
        self.num_waiting_bytes = 0
        self.num_body_bytes = 0

    def __repr__(self) -> str:
        state = "complete" if self.is_complete else "incomplete"
        return f"Request({self.method} {self.target!r}, {self.num_body_bytes} bytes, {state})"

    def add(self, part: bytes) -> None:
        """More of the body is there."""
        num_bytes = len(part)
        self.parts.append(part)
        self.num_waiting_bytes += num_bytes
        self.num_body_bytes += num_bytes

    def take(self) -> bytes:
        """What is there of the body and was not taken before."""
        taken = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.parts = []
        self.num_waiting_bytes = 0
        return taken

    def path_and_query(self) -> tuple[bytes, str, bytes]:
        """The path as sent, the path as meant, and the query."""
        raw, _, query = self.target.partition(b"?")
        path = raw.decode("ascii")
        return raw, unquote(path) if "%" in path else path, query
