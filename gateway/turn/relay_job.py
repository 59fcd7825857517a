"""From a request to a place on a text-level engine, whose tokenizer the gateway lacks.

Owns what stands for its tokens: four bytes of its JSON are counted as one, and blocks of so many
have digests, so that conversations find the worker that has their beginning. Must not know
workers, frames or answers.
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
"""An image in a message; its bytes are no tokens."""
_LEAST_TOKENS: Final = 1

_encode = msgspec.json.Encoder().encode


class RelayJob(msgspec.Struct, frozen=True):
    """What routing has to know of a request. `prompt_tokens` is an estimate; `digests` are those of
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
        self, ticket: int, *, cloud: bool, excluded: frozenset[WorkerId] = frozenset()
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
            fingerprint=self.fingerprint,
        )


def chat_job(request: ChatRequest, caller: Caller, view: ModelView) -> RelayJob:
    """The job of a chat."""
    text = _text_of(request.raw)
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
    """The job of a request that is no chat, as an image or an embedding: nothing of it is likely to
    be in a cache.
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


def _text_of(raw: Mapping[str, Any]) -> bytes:
    """What a template would write of it, about: the next turn's begins with the same bytes. Tools
    stand first in most templates.
    """
    messages = raw.get("messages", [])
    text: bytes = _encode(raw.get("tools")) + b"".join(map(_encode, messages))
    if b'"data:' not in text:
        return text
    return _DATA_URL.sub(lambda match: xxhash.xxh3_128_digest(match[0]), text)
