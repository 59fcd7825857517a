"""A relay job: what routing needs of a request for a text-level engine.

Owns the estimate of tokens that the gateway, which has no tokenizer of such a model, cannot count:
four bytes of the request's JSON are one token. Blocks of these have digests, so that a conversation
finds the worker that has its prefix. Must not know workers, frames or answers.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import xxhash

from gateway.api import ChatRequest
from gateway.routing import ModelView, RouteRequest
from gateway.turn.caller import Caller
from gateway.turn.preparation import is_auxiliary
from protocol.hashing import block_digests, root_digest
from protocol.ids import BlockDigest, WorkerId
from protocol.tokens import TOKEN_BYTES

_DATA_URL: Final = re.compile(rb'"data:[^"]{256,}"')
"""An image in a message, whose bytes are not counted as tokens."""
_LEAST_TOKENS: Final = 1

_encode = msgspec.json.Encoder().encode


class RelayJob(msgspec.Struct, frozen=True):
    """What routing needs of a request. `prompt_tokens` is an estimate; `digests` are the digests of
    the full blocks of its text.
    """

    model: str
    caller: Caller
    session: str | None
    digests: tuple[BlockDigest, ...]
    prompt_tokens: int
    max_tokens: int
    auxiliary: bool = False
    fingerprint: bytes = b""

    def route_request(
        self,
        ticket: int,
        *,
        cloud: bool,
        excluded: frozenset[WorkerId] = frozenset(),
        has_failed: bool = False,
    ) -> RouteRequest:
        """The request for a place."""
        caller = self.caller
        return RouteRequest(
            ticket=ticket,
            model=self.model,
            key=caller.key,
            weight=caller.weight,
            session=self.session,
            digests=self.digests,
            prompt_tokens=self.prompt_tokens,
            max_tokens=self.max_tokens,
            auxiliary=self.auxiliary,
            cloud=cloud and caller.cloud,
            excluded=excluded,
            has_failed=has_failed,
            fingerprint=self.fingerprint,
        )


def chat_job(request: ChatRequest, caller: Caller, view: ModelView) -> RelayJob:
    """The job of a chat."""
    text = text_of(request.raw)
    prompt_tokens = max(_LEAST_TOKENS, len(text) // TOKEN_BYTES)
    rest = max(1, (view.context_length or prompt_tokens + 1) - prompt_tokens)
    salt = caller.key.encode() if caller.private_cache else b""
    digests = block_digests(root_digest(view.name, "", salt), text, view.block_size or 1)
    return RelayJob(
        model=view.name,
        caller=caller,
        session=caller.session or request.session,
        digests=tuple(digests),
        prompt_tokens=prompt_tokens,
        max_tokens=min(request.max_tokens or rest, rest),
        auxiliary=is_auxiliary(request, prompt_tokens),
        fingerprint=request.fingerprint,
    )


def other_job(model: str, session: str | None, caller: Caller, body: bytes) -> RelayJob:
    """The job of a request that is not a chat, such as an image: no worker is likely to have any of
    it in its cache.
    """
    return RelayJob(
        model=model,
        caller=caller,
        session=caller.session or session,
        digests=(),
        prompt_tokens=_LEAST_TOKENS,
        max_tokens=1,
        fingerprint=xxhash.xxh3_128_digest(body),
    )


def text_of(raw: Mapping[str, Any]) -> bytes:
    """Roughly what a template would write, so that the text of the next turn begins with the same
    bytes. Tools come first, as in most templates.
    """
    messages = raw.get("messages", [])
    text: bytes = _encode(raw.get("tools")) + b"".join(map(_encode, messages))
    if text.find(b'"data:') < 0:
        return text
    return _DATA_URL.sub(lambda match: xxhash.xxh3_128_digest(match[0]), text)
