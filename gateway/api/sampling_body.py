"""The fields that every request for generated text has: how to sample, where to stop.

Owns their types and bounds, which msgspec checks. Must not know what a prompt is. Null counts as
absent everywhere; fields that are not listed are accepted and kept for providers.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from protocol.sampling import MAX_STOP_IDS

MAX_STOP_CHARS: Final = 1024
"""Every choice compiles every stop string, 0.1 us per character, on the loop of all streams."""

MAX_CHOICES: Final = 16
MAX_STOPS: Final = 16

StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
OutputCap = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class StreamOptions(msgspec.Struct):
    """What a stream adds."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingBody(msgspec.Struct, kw_only=True):
    """How the answer is generated."""

    model: Annotated[str, Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: OutputCap | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_IDS)] | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    response_format: dict[str, Any] | None = None
