"""What the failures and refusals of one provider become, and what is said of them.

Owns which statuses concern the request and which the provider, and what of a server's own words
clients and operators may read: no text names the address or the key. Must not know how a request is
sent, nor how an answer is passed on.
"""

from typing import Final, final

import trio

from gateway.api import OVERFLOW, ApiError
from gateway.upstream.answer import (
    NotAnAnswer,
    ProviderAnswer,
    ProviderCut,
    ProviderUnavailable,
)
from gateway.upstream.error_words import (
    UNSEEN,
    ReportedError,
    error_of,
    ours_of,
    quoted,
    without_credit_in,
)
from gateway.upstream.forwarded_headers import Header, forwarded_to_client
from gateway.upstream.redaction import without_inner_words
from gateway.upstream.relay import BadStream
from gateway.upstream.retry_after import retry_after_in, retry_after_s
from protocol.errors import (
    ConnectError,
    ConnectTimeout,
    HermaError,
    HttpError,
    KeptConnectionClosed,
    ReadTimeout,
    WriteTimeout,
)
from protocol.redaction import Redaction
from protocol.transport import HttpResponse

MAX_WORDS_BYTES: Final = 2**16
WORDS_S: Final = 2.0
"""How long the words of a failure are awaited: another server may answer meanwhile."""

_ABOUT_REQUEST: Final = frozenset({400, 413, 414, 415, 422, 431})
"""Statuses that refuse the request. All others below 500 concern the provider, our account there or
this moment (409, 425), so that another provider may answer.
"""
_TOO_LARGE: Final = frozenset({413, 414, 431})
"""Statuses that need no words: proxies refuse a large body with a web page."""

_UNCHARGED: Final = frozenset({500, 501, 503, 529})
"""Statuses for which no provider charges, as for any 4xx. Others (502, 504) may come from a proxy
that stopped waiting while the model continued.
"""
_NO_CREDIT: Final = 402


@final
class ProviderFailures:
    """The failures of the provider `name`. With `is_engine` it is a text-level engine behind a
    worker, which knows no account.
    """

    def __init__(self, name: str, redaction: Redaction, *, is_engine: bool) -> None:
        self._name = name
        self._redaction = redaction
        self._is_engine = is_engine

    def redacted(self, body: bytes) -> bytes:
        """A body without the address and the key."""
        return self._redaction.of(body)

    def check_status(self, response: HttpResponse) -> None:
        status = response.status
        if 200 <= status < 300 or status in _ABOUT_REQUEST:
            return
        raise ProviderUnavailable(
            f"{self._name} failed with status {status}",
            status=status,
            retry_after_s=retry_after_s(dict(response.headers)),
            may_be_charged=status >= 500 and status not in _UNCHARGED,
        )

    def check_refusal(self, status: int, body: bytes) -> None:
        """Raises `ProviderUnavailable` for a refusal that is no matter of the client's: providers
        say 400, too, of a key, an account or the name of a model.
        """
        if not self._is_engine and (inner := ours_of(status, body)) is not None:
            text = f"{self._name} failed with status {status}"
            raise ProviderUnavailable(
                text, status=status, inner=self.shown(inner), may_be_charged=False
            )

    async def answer_to(self, response: HttpResponse) -> ProviderAnswer | None:
        """None if the status is that of an answer or a refusal. Raises `ProviderUnavailable` for
        other statuses, with the words in the body; a prompt that is too long, and a picture that an
        engine's model cannot see, are refusals all the same.
        """
        try:
            self.check_status(response)
        except ProviderUnavailable as failed:
            error = await self.note_words(failed, response)
            if error is not None and (error.code == OVERFLOW or self._cannot_see(error)):
                return self.refusal(error)
            raise
        return None

    def _cannot_see(self, error: ApiError) -> bool:
        """Whether the model of a text engine lacks pictures, or sound; of several providers, the
        next one may have a model that does not.
        """
        return self._is_engine and error.code == UNSEEN

    async def note_words(
        self, failed: ProviderUnavailable, response: HttpResponse
    ) -> ApiError | None:
        """Put the words of a 5xx into `failed`; the words of other refusals may be about our
        account. The words of a 429 may name a pause, or say that our account has no credit, which
        becomes a 402.
        """
        is_limit = response.status == 429 and failed.retry_after_s is None
        has_words = response.status >= 500 or (is_limit and not self._is_engine)
        body = await first_bytes(response) if has_words else b""
        if is_limit:
            failed.retry_after_s = retry_after_in(body)
            if failed.retry_after_s is None and (inner := without_credit_in(body)) is not None:
                failed.status, failed.inner = _NO_CREDIT, self.shown(inner)
            body = b""
        if (error := error_of(response.status, body)) is not None:
            failed.words = self.shown(quoted(error.message))
        return error

    def refusal(self, error: ApiError) -> ProviderAnswer:
        return ProviderAnswer(error.status, self._redaction.of(error.body()))

    def plain_refusal(self, status: int, body: bytes) -> ApiError | None:
        """The refusal in a body that is no JSON; None for an answer's, and for a web page."""
        if status not in _ABOUT_REQUEST:
            return None
        if status in _TOO_LARGE:
            text = f"{self._name} takes no request of this size."
            return error_of(status, body) or ApiError(status, text)
        return error_of(status, body)

    def no_answer(self, error: NotAnAnswer, status: int) -> ProviderUnavailable:
        return ProviderUnavailable(
            self._redaction.of(f"{self._name} {error}".encode()).decode(),
            status=self._status_of(error.reported) or status,
            retry_after_s=self._pause_of(error.reported),
            may_be_charged=not (is_refusal(status) or _is_refused(error.reported)),
            words=self.shown(self._words_in(error.reported)),
            inner=self.shown(error.reported.inner),
        )

    def _words_in(self, reported: ReportedError) -> str:
        """The words of an error that clients may read. A worker's engine has no account."""
        return reported.words if not self._is_engine else reported.words or reported.inner

    def _status_of(self, reported: ReportedError) -> int | None:
        """The status that a provider's error in an answer with status 200 names, as those of busy
        ones do that have sent comments before. A worker's engine is judged by its responses.
        """
        return reported.status if not self._is_engine else None

    def _pause_of(self, reported: ReportedError) -> int | None:
        return reported.retry_after_s if not self._is_engine else None

    def shown(self, words: str) -> str:
        """A server's own words, as clients and operators may read them."""
        return without_inner_words(self._redaction.of(words.encode()).decode())

    def forwarded(self, response: HttpResponse) -> tuple[Header, ...]:
        return tuple(forwarded_to_client(response.headers, self._redaction))

    def refusal_in(self, error: HermaError, *, has_begun: bool) -> ApiError:
        """The server's error about the request, if that ended an exchange. Raises `ProviderCut`
        for any other end if the answer `has_begun`, else `ProviderUnavailable`.
        """
        failed = self.failure(error)
        if has_begun:
            raise ProviderCut(str(failed), words=failed.words) from failed
        if not isinstance(error, BadStream) or error.reported.refusal is None:
            raise failed from error
        return error.reported.refusal

    def failure(self, error: HermaError) -> ProviderUnavailable:
        """The failure for an error of the HTTP client, whose own text may name addresses."""
        name, may_be_charged, was_kept = self._name, True, False
        words, filtered, reported = "", None, ReportedError()
        match error:
            case ProviderUnavailable():
                return error
            case ConnectError():
                text, may_be_charged = f"{name} cannot be reached", False
            case ConnectTimeout():
                text, may_be_charged = f"{name} did not take the connection in time", False
            case ReadTimeout() | WriteTimeout():
                text = f"{name} was silent for too long"
            case BadStream():
                text = self._redaction.of(f"{name} {error}".encode()).decode()
                filtered, reported = error.filtered, error.reported
                may_be_charged = not _is_refused(reported)
                words = self._words_in(reported) if reported.inner else error.words
                words = self.shown(words)
            case KeptConnectionClosed():
                text, was_kept = f"{name} ended the connection", True
            case _:
                text = f"{name} broke the exchange off ({type(error).__name__})"
        return ProviderUnavailable(
            text,
            status=self._status_of(reported),
            retry_after_s=self._pause_of(reported),
            may_be_charged=may_be_charged,
            was_kept=was_kept,
            words=words,
            inner=self.shown(reported.inner),
            filtered=filtered,
        )


async def first_bytes(response: HttpResponse) -> bytes:
    """The part of a body that arrives within `WORDS_S`."""
    body = bytearray()
    with trio.move_on_after(WORDS_S):
        try:
            async for data in response.body:
                body += data
                if len(body) > MAX_WORDS_BYTES:
                    break
        except HttpError:
            return bytes(body)  # the body broke off; the status is known
    return bytes(body)


def is_refusal(status: int | None) -> bool:
    """Whether a server refuses by that status, for which none charges."""
    return status is not None and 400 <= status < 500


def _is_refused(reported: ReportedError) -> bool:
    """Whether an error in an answer with status 200 is a refusal by its status or words: these are
    free, unless a part of the answer was made before.
    """
    return not reported.is_late and (bool(reported.inner) or is_refusal(reported.status))
