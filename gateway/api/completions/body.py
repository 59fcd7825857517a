"""The shape of a raw completion's body: types and bounds of the fields that Herma reads.

Must not know what the fields mean together (`request.py` does).
"""

from typing import Annotated

from msgspec import Meta

from gateway.api.sampling_body import SamplingBody, TokenId
from protocol.sampling import MAX_LOGPROBS


class CompletionBody(SamplingBody, kw_only=True):
    """Null counts as absent. A list is one of texts, one prompt in ids, or several such prompts."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
    suffix: str | None = None
    echo: bool | None = None
    best_of: int | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    prompt_logprobs: int | None = None
    add_special_tokens: bool | None = None
