"""The outcomes of a request to a provider.

Owns the complete answer, what a body must contain to be one, and the two failures. Must not know
HTTP clients.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.upstream.forwarded_headers import Header
from protocol.errors import HermaError


class ProviderFailed(HermaError):
    """The provider sent no part of an answer, so another provider can be asked. `status` is that of
    its response, if there was one. `may_be_charged` is False if the request did not reach the
    provider or was refused. `was_kept`: a kept-alive connection ended before the response, so the
    request may succeed on a new one.
    """

    def __init__(
        self,
        text: str,
        *,
        status: int | None = None,
        retry_after_s: int | None = None,
        may_be_charged: bool = True,
        was_kept: bool = False,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_s = retry_after_s
        self.may_be_charged = may_be_charged
        self.was_kept = was_kept


class ProviderCut(HermaError):
    """The answer broke off after a part of it was passed on to the client."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer: a 200, or a 4xx that is about the request itself."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = ()


class _Body(msgspec.Struct):
    error: object = None
    choices: object = None


_decode: Final = msgspec.json.Decoder(_Body).decode


class NoAnswer(HermaError):
    """A response body is not an answer. The text may be shown to clients."""


def check_answer(status: int, body: bytes) -> None:
    """Raise `NoAnswer` for a web page, whatever its status, and for a 200 that is not an answer.
    Agents read the message of each choice, which may be empty: a model can end at once.
    """
    try:
        if not body.isascii():
            body.decode()  # fields that no one reads are only skipped
        answer = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        is_json = isinstance(error, msgspec.ValidationError)
        raise NoAnswer("sent no JSON object" if is_json else "sent no JSON") from error
    if status != 200:
        return
    if answer.error:
        raise NoAnswer("sent an error instead of an answer")
    choices = answer.choices if isinstance(answer.choices, list) else []
    if not choices or not all(map(_has_message, choices)):
        raise NoAnswer("sent an answer without a message")


def _has_message(choice: object) -> bool:
    return isinstance(choice, dict) and isinstance(choice.get("message"), dict)
