"""What asking a provider comes to.

Owns the whole answer, what a body must hold to be one, and the two ways in which there is none.
Must not know httpx.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.upstream.forwarded_headers import Header
from protocol.errors import HermaError


class ProviderFailed(HermaError):
    """Nothing of an answer came; another may be asked. `status` is what it said, if it spoke.
    `may_be_charged` False: the request never reached it, or was refused. `was_kept`: a connection
    that was kept alive has ended before a word of the answer; a new one may serve.
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
    """The answer broke off after a part of it was passed on."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: a 200, or a 4xx that is about the request itself, and its headers."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = ()


class _Body(msgspec.Struct):
    error: object = None
    choices: object = None


_decode: Final = msgspec.json.Decoder(_Body).decode


def problem_of(body: bytes) -> str | None:
    """Why a JSON object with status 200 is no answer, in words that a client may read: agents read
    the message of each choice. One without words is an answer, for a model may end at once.
    """
    said = _decode(body)
    if said.error:
        return "sent an error instead of an answer"
    choices = said.choices if isinstance(said.choices, list) else []
    is_answer = bool(choices) and all(map(_has_message, choices))
    return None if is_answer else "sent an answer without a message"


def _has_message(choice: object) -> bool:
    return isinstance(choice, dict) and isinstance(choice.get("message"), dict)
