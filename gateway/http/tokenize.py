"""POST /tokenize, POST /detokenize and GET /tokenizer_info.

Owns which text of a request is encoded, and how. Must not know tokenizers.
"""

from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec

from gateway.api import (
    ChatRequest,
    DetokenizeBody,
    Detokenized,
    Rewrite,
    TokenizeBody,
    Tokenized,
    chat_request,
    decode_object,
    invalid,
    typed_body,
)
from gateway.http.edge import Edge
from gateway.http.error_responses import json_bytes
from gateway.http.exchange import Exchange
from gateway.prompt import (
    END_SEGMENTS,
    STEP_CHARS,
    StepwiseDraft,
    StepwiseText,
    checked_ids,
    decode_raw,
    encode_raw,
    token_strings,
)
from gateway.turn import Caller, KnownText
from protocol.tokens import TOKEN_BYTES, pack_tokens, unpack_tokens

MAX_TOKENS: Final = 2_100_000
"""The largest windows have two million."""


async def tokenize(exchange: Exchange) -> None:
    """Text or chat -> ids; the prompt of a chat is counted exactly as a turn would count it."""
    edge, caller, body = exchange.edge, exchange.identify(), await exchange.body()
    raw, typed = await edge.read(caller, body, _tokenize_body)
    if (typed.prompt is None) == (typed.messages is None):
        raise invalid("prompt", "Send one of 'prompt' and 'messages'.")
    model = _model(edge, typed.model)
    known = await edge.text_of(model)
    packed = await _packed(known, caller, typed, {**raw, "model": model}, len(body))
    if len(packed) > MAX_TOKENS * TOKEN_BYTES:
        num = len(packed) // TOKEN_BYTES
        text = f"The text has {num} tokens; the ids of at most {MAX_TOKENS} are sent at once."
        raise invalid("prompt", text, code="too_many_tokens")

    def answer() -> bytes:
        ids = unpack_tokens(packed)
        strings = token_strings(known.text, ids) if typed.return_token_strs else None
        window = known.view.context_length
        return json_bytes(Tokenized(len(ids), window, list(ids), strings))

    await exchange.send_body(200, await known.run(caller, len(body), answer))


async def detokenize(exchange: Exchange) -> None:
    """Ids -> text."""
    edge, caller, body = exchange.edge, exchange.identify(), await exchange.body()
    typed = await edge.read(caller, body, _detokenize_body)
    known = await edge.text_of(_model(edge, typed.model))
    ids = checked_ids(known.text, typed.tokens, "tokens")
    text = await known.run(caller, len(ids), lambda: decode_raw(known.text, ids))
    await exchange.send_json(Detokenized(text))


async def tokenizer_info(exchange: Exchange) -> None:
    """The special tokens and the chat template of the model in the query."""
    exchange.identify()
    known = await exchange.edge.text_of(_model(exchange.edge, exchange.query.get("model")))
    window = known.view.context_length
    await exchange.send_json({**known.text.tokenizer_info, "model_max_length": window})


def _model(edge: Edge, given: str | None) -> str:
    """The model that the request names; without a name, the only model."""
    if given is not None:
        return given
    models = edge.models()
    if len(models) != 1:
        raise invalid("model", "'model' is missing, and there is more than one to choose from.")
    return models[0].name


def _tokenize_body(body: bytes, rewrite: Rewrite | None) -> tuple[dict[str, Any], TokenizeBody]:
    raw = decode_object(body)
    if rewrite is not None:
        raw = rewrite(raw)
    return raw, typed_body(raw, TokenizeBody)


def _detokenize_body(body: bytes, _rewrite: Rewrite | None) -> DetokenizeBody:
    return typed_body(decode_object(body), DetokenizeBody)


async def _packed(
    known: KnownText, caller: Caller, typed: TokenizeBody, raw: dict[str, object], size: int
) -> bytes:
    """The packed ids of the prompt or chat."""
    if typed.prompt is None:
        request = chat_request(raw)
        kwargs = known.own.with_variables(request.template_kwargs)
        if typed.add_generation_prompt is False and not request.answer_start:
            kwargs = {**kwargs, "add_generation_prompt": False}
        request = msgspec.structs.replace(request, template_kwargs=kwargs)
        return await _packed_chat(known, caller, request, size)
    prompt, special = typed.prompt, typed.add_special_tokens is not False
    if not prompt:
        return b""
    if len(prompt) > STEP_CHARS:
        work = StepwiseText(known.text, prompt, add_special_tokens=special)
        return await known.encode(caller, len(prompt), work)
    encode = partial(encode_raw, known.text, prompt, add_special_tokens=special)
    return pack_tokens(await known.run(caller, len(prompt), encode))


async def _packed_chat(known: KnownText, caller: Caller, request: ChatRequest, size: int) -> bytes:
    """The packed ids of a chat's prompt, whose body has `size` bytes. Raises `ApiError` for what
    the model cannot take.
    """
    text = known.text
    is_past = request.other_part is not None and request.other_part.is_past
    if not is_past and (refusal := request.refused_locally) is not None:
        raise refusal
    now = datetime.now(tz=UTC).astimezone().replace(tzinfo=None)
    given = request.messages, request.prompt_tools, request.template_kwargs, now
    segments = await known.run(caller, size, partial(text.render_chat, *given))
    packed = await _packed_segments(known, caller, segments, size)
    if not request.answer_start:
        return packed
    end = "".join(segments[-END_SEGMENTS:])
    start = text.answer_start_segments(text.answer_format(), end, request.answer_start)
    return packed + await _packed_segments(known, caller, start, len(request.answer_start))


async def _packed_segments(
    known: KnownText, caller: Caller, segments: list[str], size: int
) -> bytes:
    """The packed ids of segments with about `size` characters."""
    text = known.text
    owner = caller.key.encode() if caller.private_cache else b""
    draft = await known.run(caller, size, partial(text.prompts.draft, segments, owner))
    num_chars = sum(map(len, draft.missing))
    if num_chars > STEP_CHARS:
        work = StepwiseDraft(text.prompts, draft)
        return await known.encode(caller, num_chars, work)
    encoded = await known.run(caller, num_chars, partial(text.prompts.encode, draft))
    return text.prompts.finish(draft, encoded)


async def count_chat(known: KnownText, caller: Caller, request: ChatRequest) -> int:
    """The tokens of the prompt of `request`. Raises `ApiError` for what the model cannot take."""
    variables = known.own.with_variables(request.template_kwargs)
    request = msgspec.structs.replace(request, template_kwargs=variables)
    return len(await _packed_chat(known, caller, request, request.num_bytes or 0)) // TOKEN_BYTES
