"""Bytes -> requests: the pure core of the server's reading side.

Owns what is accepted as HTTP/1.1, and the status of what is refused. Must not know sockets, clocks
or the app.

llhttp is strict by default: it refuses conflicting lengths, broken chunks, folded headers, space
before colons and bare line feeds. This file also refuses other HTTP versions, a repeated Host,
transfer codings other than chunked, and endless heads. It ignores an upgrade, as RFC 9110 7.8
allows; clients that offer one with every POST expect that.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

import httptools

from gateway.api import ApiError
from gateway.http.server.body_budget import BodyHold

_SLICE_BYTES: Final = 4096
"""Bytes that are parsed at once, so that parsing stops soon after the bound on waiting requests."""
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
_CHECKED: Final = frozenset({b"host", b"transfer-encoding", b"content-encoding", b"expect"})

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ParserLimits:
    """What a client may send. `max_target_bytes` bounds the request's target; `max_head_bytes`
    bounds the head, the trailers and each chunk's header. Reading pauses while
    `max_waiting_requests` pipelined requests wait, or more than `max_body_ahead_bytes` of a body
    that the app has not taken. The app bounds the size of bodies.
    """

    max_target_bytes: int = 8 * 2**10
    max_head_bytes: int = 64 * 2**10
    max_headers: int = 100
    max_waiting_requests: int = 16
    max_body_ahead_bytes: int = 256 * 2**10


class ParsedRequest:
    """A request whose head is complete. `error`: the rest of its body will not come, for this
    reason. `hold` counts a body that did not come at once.
    """

    __slots__ = (
        "error",
        "expects_continue",
        "has_plain_body",
        "headers",
        "hold",
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
        self.has_plain_body = True
        self.is_complete = False
        self.error: ApiError | None = None
        self.hold: BodyHold | None = None
        self.parts: list[bytes] = []
        self.num_waiting_bytes = 0
        self.num_body_bytes = 0

    def __repr__(self) -> str:
        state = "complete" if self.is_complete else "incomplete"
        return f"ParsedRequest({self.method} {self.target!r}, {self.num_body_bytes} bytes, {state})"

    def add(self, part: bytes) -> None:
        """Add a part of the body."""
        num_bytes = len(part)
        self.parts.append(part)
        self.num_waiting_bytes += num_bytes
        self.num_body_bytes += num_bytes

    def take(self) -> bytes:
        """The part of the body that has arrived since the last call."""
        taken = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.parts = []
        self.num_waiting_bytes = 0
        return taken

    def path_and_query(self) -> tuple[bytes, str, bytes]:
        """The path as sent, the path decoded, and the query."""
        raw, _, query = self.target.partition(b"?")
        path = raw.decode("ascii")
        return raw, unquote(path) if "%" in path else path, query


class RequestParser:
    """`feed` takes bytes, `take` gives requests, whose bodies grow while more bytes are fed.

    `error` ends the connection: it answers the bytes after the last request, unless that request's
    own body is broken. `is_over`: nothing more is parsed.
    """

    __slots__ = (
        "_headers",
        "_is_replaying",
        "_limits",
        "_llhttp",
        "_num_quiet_bytes",
        "_num_trailers",
        "_rest",
        "_target",
        "body_of",
        "error",
        "is_in_head",
        "is_over",
        "waiting",
    )

    def __init__(self, limits: ParserLimits) -> None:
        self._limits = limits
        self._llhttp: httptools.HttpRequestParser | None = None
        self._rest = b""
        self._num_quiet_bytes = 0
        self._target = b""
        self._headers: Headers = []
        self._num_trailers = 0
        self._is_replaying = False
        self.waiting: list[ParsedRequest] = []  # at most `max_waiting_requests`
        self.is_in_head = False
        self.body_of: ParsedRequest | None = None
        self.error: ApiError | None = None
        self.is_over = False

    @property
    def is_full(self) -> bool:
        """Whether to pause reading, because more bytes would exceed the limits."""
        if len(self.waiting) >= self._limits.max_waiting_requests:
            return True
        body_of = self.body_of
        return body_of is not None and (
            body_of.num_waiting_bytes > self._limits.max_body_ahead_bytes
        )

    @property
    def is_idle(self) -> bool:
        """Whether all bytes so far belong to complete requests that were taken."""
        return not (self.waiting or self.is_in_head or self.body_of or self._rest)

    def feed(self, data: bytes) -> None:
        """Parse what was received."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        elif len(data) <= _SLICE_BYTES and not self.waiting and not self.is_over:
            # The usual case: one whole request, sent after the answer to the previous one.
            self._parse(data)
            return
        for start in range(0, len(data), _SLICE_BYTES):
            if self.is_over:
                return
            if len(self.waiting) >= self._limits.max_waiting_requests:
                self._rest = data[start:]
                return
            self._parse(data[start : start + _SLICE_BYTES])

    def take(self) -> ParsedRequest | None:
        """The next request, if there is one."""
        if not self.waiting:
            return None
        request = self.waiting.pop(0)
        if self._rest:
            self.feed(b"")
        return request

    def fail(self, error: ApiError) -> None:
        """Parse nothing more, because of `error`. Does nothing after the last request."""
        if self.is_over:
            return
        self.is_over = True
        self.is_in_head = False
        self.error = error
        if self.body_of is not None:
            self.body_of.error = error
            self.body_of = None

    def close(self) -> None:
        """Parse nothing more. llhttp holds the methods that it calls, so without this only the
        garbage collector would free them both.
        """
        self.is_over = True
        self._rest = b""
        self._llhttp = None

    def _parse(self, data: bytes) -> None:
        self._num_quiet_bytes += len(data)
        if self._llhttp is None:
            self._llhttp = httptools.HttpRequestParser(self)
        try:
            self._llhttp.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserInvalidMethodError:
            self.fail(_refusal(501, "The request's method is unknown."))
        except httptools.HttpParserError as error:
            # The context is the exception of one of the callbacks below.
            reason = error.__context__
            if not isinstance(reason, ApiError):
                reason = _refusal(400, f"The request is not valid HTTP/1.1: {error}.")
            self.fail(reason)
        if self.body_of is None and not self.is_in_head:
            # Between requests llhttp knows nothing, and its 0.9 KB would wait for a long answer.
            self._llhttp = None
        if self._num_quiet_bytes > self._limits.max_head_bytes:
            self.fail(self._too_long())
        elif self.is_in_head and len(self._headers) > self._limits.max_headers:
            # The head is not complete; a complete one is counted in `on_headers_complete`.
            self.fail(self._too_many())

    def _too_many(self) -> ApiError:
        return _refusal(431, f"There are more than {self._limits.max_headers} headers.")

    def _too_long(self) -> ApiError:
        num_bytes = self._limits.max_head_bytes
        return _refusal(431, f"The head or a chunk's framing has over {num_bytes} bytes.")

    def _ignore_upgrade(self, rest: bytes) -> None:
        """llhttp takes everything after an upgrade for the other protocol, even the body. So a new
        parser gets a head with the same framing headers and parses the body.
        """
        assert self.body_of is not None
        framing = b"".join(
            b"%b: %b\r\n" % header for header in self.body_of.headers if header[0] in _FRAMING
        )
        self._llhttp = llhttp = httptools.HttpRequestParser(self)
        self._is_replaying = True
        llhttp.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
        self._is_replaying = False
        self._parse(rest)

    # Called by llhttp.

    def on_message_begin(self) -> None:
        if self._is_replaying:
            return
        if self.is_over:
            raise _refusal(400, "Nothing may follow the last request of a connection.")
        self.is_in_head = True
        self._target = b""
        self._headers = []
        self._num_trailers = 0

    def on_url(self, part: bytes) -> None:
        if self._is_replaying:
            return
        self._target += part
        if len(self._target) > self._limits.max_target_bytes:
            raise _refusal(414, f"The target is longer than {self._limits.max_target_bytes} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_in_head:
            self._count_trailer()
            return
        # llhttp strips the space before a value, but not the one after it.
        self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        if self._is_replaying:
            return
        llhttp = self._llhttp
        assert llhttp is not None
        method = llhttp.get_method().decode("ascii")
        request = ParsedRequest(
            method,
            self._target,
            self._headers,
            llhttp.get_http_version(),
            keeps_alive=llhttp.should_keep_alive(),
        )
        if len(self._headers) > self._limits.max_headers:
            raise self._too_many()
        check_head(request)
        self.is_in_head = False
        self._num_quiet_bytes = 0
        self.body_of = request
        self.waiting.append(request)

    def on_body(self, part: bytes) -> None:
        self._num_quiet_bytes = 0
        if self.body_of is not None:
            self.body_of.add(part)

    def on_message_complete(self) -> None:
        request = self.body_of
        if request is None:
            return
        assert self._llhttp is not None
        if self._llhttp.should_upgrade() and not self._is_replaying:
            return
        request.is_complete = True
        self.body_of = None
        self._num_quiet_bytes = 0
        self.is_over = not request.keeps_alive

    def _count_trailer(self) -> None:
        self._num_trailers += 1
        if self._num_trailers > self._limits.max_headers:
            raise _refusal(431, f"There are more than {self._limits.max_headers} trailers.")


def check_head(request: ParsedRequest) -> None:
    """Set the request's fields that follow from its head. Raises `ApiError` for a request that is
    refused.
    """
    if request.version not in {"1.1", "1.0"}:
        raise _refusal(505, "Only HTTP/1.0 and 1.1 are supported.")
    num_hosts = num_codings = 0
    for name, value in request.headers:
        if name not in _CHECKED:
            continue
        if name == b"host":
            num_hosts += 1
        elif name == b"transfer-encoding":
            num_codings += 1
            _check_coding(request, value)
        elif name == b"content-encoding":
            request.has_plain_body &= value.strip().lower() in {b"", b"identity"}
        else:
            _check_expectation(request, value)
    if num_hosts > 1 or (num_hosts == 0 and request.version == "1.1"):
        raise _refusal(400, "There must be exactly one Host header.")
    if num_codings > 1:
        raise _refusal(400, "There must be at most one Transfer-Encoding header.")
    if request.version == "1.0":
        request.keeps_alive = False
    _check_target(request)


def _check_coding(request: ParsedRequest, value: bytes) -> None:
    if request.version == "1.0":
        raise _refusal(400, "HTTP/1.0 does not have Transfer-Encoding.")
    if value.strip().lower() != b"chunked":
        raise _refusal(501, "The only transfer coding supported is chunked.")


def _check_expectation(request: ParsedRequest, value: bytes) -> None:
    if value.strip().lower() != b"100-continue":
        raise _refusal(417, "The only expectation supported is 100-continue.")
    request.expects_continue = request.version == "1.1"


def _check_target(request: ParsedRequest) -> None:
    target = request.target
    if request.method == "CONNECT":
        raise _refusal(501, "CONNECT is not supported; this is not a proxy.")
    if target.count(b"#"):
        raise _refusal(400, "A request's target must not have a fragment.")
    if target[:1] == b"/" or (target == b"*" and request.method == "OPTIONS"):
        return
    if not target.lower().startswith((b"http://", b"https://")):
        raise _refusal(400, "The request's target is not a path.")
    try:
        parts = urlsplit(target)
    except ValueError as error:
        raise _refusal(400, "The request's target is not an address.") from error
    host = next((value for name, value in request.headers if name == b"host"), b"")
    if parts.netloc.lower() != host.lower():
        raise _refusal(400, "The request's target names another host than its Host header.")
    request.target = (parts.path or b"/") + (b"?" + parts.query if parts.query else b"")


def _refusal(status: int, message: str) -> ApiError:
    return ApiError(status, message, error_type="invalid_request_error")
