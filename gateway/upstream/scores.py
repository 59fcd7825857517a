"""Log-probabilities of an answer's text, as servers write them.

Owns their reading from a choice of a chat. Must not know which text they belong to.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.api import TokenLogprob, TopLogprob
from protocol.reading import FAULTS


class _Top(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None


class _Token(_Top):
    top_logprobs: Sequence[_Top] | None = None


class _Scores(msgspec.Struct):
    content: tuple[_Token, ...] = ()


_NONE: Final[tuple[TokenLogprob, ...]] = ()


def scores_in(given: object) -> tuple[TokenLogprob, ...]:
    """The scores in the `logprobs` of a choice; none where they are in no known form."""
    if not isinstance(given, dict) or not given.get("content"):
        return _NONE
    try:
        scores = msgspec.convert(given, _Scores)
    except FAULTS:
        return _NONE
    return tuple(
        TokenLogprob(one.token, one.logprob, _bytes(one), tuple(map(_top, one.top_logprobs or ())))
        for one in scores.content
    )


def _top(one: _Top) -> TopLogprob:
    return TopLogprob(one.token, one.logprob, _bytes(one))


def _bytes(one: _Top) -> list[int]:
    return list(one.token.encode()) if one.bytes is None else one.bytes
