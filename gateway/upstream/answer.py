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
    """The provider sent nothing of an answer, so another can be asked. `status` is that of its
    response, if there was one. `may_be_charged` False: the request did not reach the provider, or
    was refused. `was_kept`: a kept-alive connection ended before the response; a new one may work.
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


def problem_of(body: bytes) -> str | None:
    """Why a JSON object with status 200 is not an answer, for clients to read; None if it is one.
    Agents read the message of each choice, which may be empty: a model can end at once.
    """
    answer = _decode(body)
    if answer.error:
        return "sent an error instead of an answer"
    choices = answer.choices if isinstance(answer.choices, list) else []
    is_answer = bool(choices) and all(map(_has_message, choices))
    return None if is_answer else "sent an answer without a message"


def _has_message(choice: object) -> bool:
    return isinstance(choice, dict) and isinstance(choice.get("message"), dict)
