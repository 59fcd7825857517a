"""What asking a provider comes to.

Owns the whole answer and the two ways in which there is none. Must not know httpx.
"""

from dataclasses import dataclass

from gateway.core.end_to_end import Header
from protocol.errors import HermaError


class ProviderFailed(HermaError):
    """Nothing of an answer came; another may be asked. `status` is what it said, if it spoke.
    `may_be_charged` False: the request never reached it, or was refused.
    """

    def __init__(
        self,
        text: str,
        *,
        status: int | None = None,
        retry_after_s: int | None = None,
        may_be_charged: bool = True,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_s = retry_after_s
        self.may_be_charged = may_be_charged


class ProviderCut(HermaError):
    """The answer broke off after a part of it was passed on."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: a 200, or a 4xx that is about the request itself, and its headers."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = ()
