"""Preparation: turns a chat request into a job for a worker.

Owns rendering and tokenising (in a thread when they take long), the limit on the output's length,
seeds and sampling. Must not know leases, frames or answers.
"""

from __future__ import annotations

import hashlib
import struct
import time
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Final

import msgspec

from gateway.api import (
    ApiError,
    ChatRequest,
    Message,
    ToolSchema,
    context_length_exceeded,
    invalid,
)
from gateway.output import AUTO, NONE, AnswerFormat
from gateway.output.tools import Opening, forced_opening
from gateway.prompt import (
    END_SEGMENTS,
    STEP_CHARS,
    ModelText,
    StepwiseDraft,
    StepwiseText,
    encode_raw,
)
from gateway.routing import ModelView
from gateway.turn.caller import Caller
from gateway.turn.grammars import (
    Beginning,
    grammar_of,
    is_strict_tool,
    not_served,
    skips_reasoning,
)
from gateway.turn.long_prompt import LongPrompt
from gateway.turn.model_prompts import PLAIN
from gateway.turn.model_texts import INLINE_SIZE, coming_text
from gateway.turn.services import Services
from protocol.grammars import ALL_FORMS, form_of
from protocol.hashing import root_digest
from protocol.ids import BlockDigest
from protocol.messages import Grammar
from protocol.sampling import SamplingParams
from protocol.tokens import TOKEN_BYTES, pack_tokens

RENDER_CHARS: Final = 128 * 1024
"""Smaller requests are rendered in the event loop, in less than 1 ms. A thread would hold the GIL
for as long, and the loop would get it back only after Python's switch interval of 5 ms.
"""
RENDER_MESSAGE_CHARS: Final = 256
"""A template spends as long on a message as on copying this many characters."""
MESSAGE_CHARS: Final = 16
"""A template writes at least this many characters around each message."""
AUXILIARY_PROMPT_TOKENS: Final = 4096
UNSUPPORTED: Final = frozenset(
    {
        "unsupported_content_part",
        "logit_bias_not_served",
        "template_refused",
        "no_chat_template",
        "grammar_not_served",
        "tool_not_served",
    }
)
"""Codes of errors that come from our own engines' limits: a provider may be able to answer."""
_CACHED_TOOLS: Final = {ToolSchema}

_NO_TIME: Final = datetime.fromtimestamp(0, UTC)
"""The time for templates that do not read it."""

_root_digest: Final = lru_cache(maxsize=1024)(root_digest)


class Job(msgspec.Struct, frozen=True):
    """One request in tokens. `prompt` holds token ids packed as u32; `digests` are the digests of
    the prompt's full blocks.

    One of `end_ids` ends the sequence; one of `stop_ids` ends the answer, and is text in the
    reasoning. `form` says how the answer is parsed. The prompt may end inside reasoning
    (`is_thinking`) or with the beginning of a tool call (`opening`). The engine enforces the
    `grammar`, if any.
    """

    request: ChatRequest
    caller: Caller
    model: str
    text: ModelText
    files_digest: bytes
    prompt: bytes
    prompt_tokens: int
    digests: tuple[BlockDigest, ...]
    sampling: SamplingParams
    seed: int
    salt: bytes
    end_ids: frozenset[int]
    stop_ids: frozenset[int]
    session: str | None
    auxiliary: bool
    form: AnswerFormat
    is_thinking: bool = False
    opening: str = ""
    grammar: Grammar | None = None

    def seed_of(self, index: int) -> int:
        """The seed of the choice `index`: the request's own for the first, derived for others."""
        if index == 0:
            return self.seed
        packed = struct.pack("<QI", self.seed, index)
        return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


async def prepare(
    services: Services, request: ChatRequest, caller: Caller, view: ModelView
) -> Job | None:
    """The job of `request` for the model `view`; None while no worker has sent the model's text
    files. Raises `ApiError` 400 for a prompt over the context window, and an `ApiError` with a code
    of `UNSUPPORTED` for content that the model cannot take.
    """
    _check_served(request, view)
    if view.files_digest is None or view.block_size is None:
        return None
    own = services.prompts.get(view.name, PLAIN)
    text = services.files.known(view.files_digest, own.template)
    if text is None:
        with services.open_turns.interruptible():
            text = await coming_text(services, view.name, view.files_digest, own.template)
        if text is None:
            return None
    form = _form(services, request, view, text)
    salt = caller.key.encode() if caller.private_cache else b""
    if own.variables:
        variables = own.with_variables(request.template_kwargs)
        request = msgspec.structs.replace(request, template_kwargs=variables)
    window = view.context_length
    prompt, end = await _encode(services, text, request, caller, window)
    given = Beginning(end, form.is_opened_by(end), opening="")
    if request.tool_choice == "required" or request.answer_start:
        segments, given = _begun(request, text, form, given)
        is_quick = len(request.answer_start) <= INLINE_SIZE
        if any(segments):
            prompt += await _encode_segments(
                services, text, request, caller, window, segments, is_quick
            )
    grammar, skipped = None, b""
    if _needs_grammar(request):
        grammar, skipped = _grammar(request, view, text, form, given)
        prompt += skipped
    prompt_tokens = len(prompt) // TOKEN_BYTES
    if window is not None and prompt_tokens >= window:
        raise context_length_exceeded(window, prompt_tokens, request.prompt_field)
    max_tokens = _max_tokens(request, window, prompt_tokens)
    sampling, stop_ids = _sampling(request, text, form, max_tokens)
    root = _root_digest(view.name, "", salt)
    seed = request.seed
    if seed is None:  # a seed has 63 bits
        seed = int.from_bytes(services.draw(8), "little") >> 1
    return Job(
        request=request,
        caller=caller,
        model=view.name,
        text=text,
        files_digest=view.files_digest,
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        digests=services.digests.digests(root, prompt, view.block_size),
        sampling=sampling,
        seed=seed,
        salt=salt,
        end_ids=_end_ids(request, text, sampling),
        stop_ids=stop_ids,
        session=caller.session or request.session,
        auxiliary=is_auxiliary(request, prompt_tokens),
        form=form,
        is_thinking=given.is_thinking and not skipped,
        opening=given.opening,
        grammar=grammar,
    )


def readable(services: Services, request: ChatRequest, view: ModelView) -> ChatRequest:
    """The request for workers where no provider may answer: without the pictures that a model of
    text can do without, unless its configuration refuses them.
    """
    part = request.other_part
    if part is None or not part.is_past:
        return request
    if any(one.name == view.name and one.pictures == "refuse" for one in services.config.models):
        return request
    return msgspec.structs.replace(request, other_part=None)


def _check_served(request: ChatRequest, view: ModelView) -> None:
    """Raise `ApiError` if the known workers of the model cannot serve the request."""
    if (refusal := request.refused_locally) is not None:
        raise refusal
    if request.num_top is not None and view.block_size is not None and not view.scores_prompts:
        text = "'echo' with 'logprobs' is not served: no log-probabilities of prompts here."
        raise invalid("logprobs", text, code="prompt_logprobs_not_served")
    if not request.embeds or view.block_size is None:
        return
    size = view.embedding_size
    if not size:
        text = f"The model '{request.model}' gives no embeddings."
        raise ApiError(404, text, code="embeddings_not_served", param="model")
    if request.dimensions is not None and request.dimensions > size:
        raise invalid("dimensions", f"'dimensions' is over {size}, which all of them have.")


def _form(
    services: Services, request: ChatRequest, view: ModelView, text: ModelText
) -> AnswerFormat:
    """How the answer is parsed: for tool calls only if the request has tools, and not at all for a
    raw completion.
    """
    if request.prompt is not None:
        return AnswerFormat(tools=None, reasoning=None)
    tools = reasoning = AUTO
    for model in services.config.models:
        if model.name == view.name:
            tools, reasoning = model.tool_parser, model.reasoning_parser
            break
    return text.answer_format(tools if request.tools else NONE, reasoning)


def _begun(
    request: ChatRequest, text: ModelText, form: AnswerFormat, given: Beginning
) -> tuple[list[str], Beginning]:
    """The segments to append to a prompt with this beginning of the answer, so that the answer
    continues a demanded call or the request's `answer_start`; and how the answer begins then.
    """
    end = given.end
    if request.tool_choice == "required":
        opening = _opening(request, text, form)
        if opening is not None:
            before = form.before_call(end) + opening.head + opening.before
            segments = text.opening_segments(opening._replace(before=before))
            return segments, Beginning(end, is_thinking=False, opening=opening.text)
    if request.answer_start:
        segments = text.answer_start_segments(form, end, request.answer_start)
        end += form.past_reasoning(end)
        return segments, Beginning(end, is_thinking=False, opening="")
    return [""], given


def _opening(request: ChatRequest, text: ModelText, form: AnswerFormat) -> Opening | None:
    """The beginning of a call that the prompt must end with, since the request demands a call."""
    if form.tools is None:
        return None
    names = tuple(tool["function"]["name"] for tool in request.tools)
    num_calls = sum(len(message.tool_calls) for message in request.messages)
    return forced_opening(form.tools.name, names, text.chat_template or "", num_calls)


def _grammar(
    request: ChatRequest, view: ModelView, text: ModelText, form: AnswerFormat, given: Beginning
) -> tuple[Grammar | None, bytes]:
    """The grammar of the answer, and tokens to append to the prompt: the end of the reasoning, if
    an engine could not tell the reasoning from the answer.
    """
    lark = "lark" in view.grammar_forms
    grammar = None
    if view.grammar_forms:
        grammar = grammar_of(request, text, form, given, takes_lark=lark)
    is_served = grammar is not None and form_of(grammar.kind, grammar.text) in view.grammar_forms
    if not is_served and view.grammar_forms != ALL_FORMS:
        if request.grammar is not None and request.grammar.is_required:
            raise not_served(request.grammar)
        return None, b""
    if grammar is None or given.opening:
        return grammar, b""
    if not skips_reasoning(request, text, form, takes_lark=lark):
        return grammar, b""
    past = form.past_reasoning(given.end)
    return grammar, pack_tokens(text.encode_opening(Opening(past))) if past else b""


def _sampling(
    request: ChatRequest, text: ModelText, form: AnswerFormat, max_tokens: int
) -> tuple[SamplingParams, frozenset[int]]:
    """The sampling parameters for an engine, and the stop tokens that the engine does not get:
    tokens that are text, if the model may reason, because an engine does not know where the
    reasoning ends. A stop at a control token, such as the end of a turn, is safe: no model has
    learned to go on after one.
    """
    sampling = request.sampling(max_tokens, text.sampling_defaults)
    if not request.stop_token_ids or form.reasoning is None:
        return sampling, frozenset()
    control = {token.id for token in text.encoder.control.values()} | text.eos_ids
    told = tuple(filter(control.__contains__, request.stop_token_ids))
    untold = frozenset(request.stop_token_ids) - control
    return msgspec.structs.replace(sampling, stop_token_ids=told), untold


def _end_ids(request: ChatRequest, text: ModelText, sampling: SamplingParams) -> frozenset[int]:
    """The tokens that end the sequence."""
    ends = frozenset() if request.ignore_eos else text.eos_ids
    return ends | frozenset(sampling.stop_token_ids) if sampling.stop_token_ids else ends


def is_auxiliary(request: ChatRequest, prompt_tokens: int) -> bool:
    """Whether the request is probably a side call of an agent, such as for a title."""
    is_plain_chat = not request.tools and request.prompt is None
    return is_plain_chat and not request.stream and prompt_tokens <= AUXILIARY_PROMPT_TOKENS


def is_quickly_rendered(request: ChatRequest) -> bool:
    """Whether the template may be rendered in the event loop, where all other streams run."""
    if request.num_bytes is not None and not request.template_kwargs:
        # Texts and cached tools are no longer than the body, so their characters need no count.
        num_bytes = request.num_bytes + RENDER_MESSAGE_CHARS * len(request.messages)
        are_known = not request.tools or {type(t) for t in request.tools} <= _CACHED_TOOLS
        if are_known and num_bytes <= RENDER_CHARS:
            return True
    plain = all(
        isinstance(value, bool | int | float | None) or (isinstance(value, str) and len(value) < 64)
        for value in request.template_kwargs.values()
    )
    num_chars = RENDER_MESSAGE_CHARS * len(request.messages)
    if num_chars > RENDER_CHARS:
        return False
    num_chars += _num_chars(request)
    for tool in request.tools:
        if type(tool) is not ToolSchema:
            return False
        num_chars += tool.num_bytes
    return plain and num_chars <= RENDER_CHARS


def guess_prompt_tokens(request: ChatRequest) -> int:
    """The size of a prompt whose tokenizer is not known yet: four characters a token."""
    return max(1, _num_chars(request) // 4)


def _max_tokens(request: ChatRequest, window: int | None, prompt_tokens: int) -> int:
    if window is None:
        return request.max_tokens or 2**31 - 1
    rest = window - prompt_tokens
    return min(request.max_tokens or rest, rest)


async def encoded_prompt(
    services: Services, text: ModelText, request: ChatRequest, caller: Caller
) -> bytes:
    """The packed ids of the prompt of `request`, as they are; for counting. Raises `ApiError`."""
    return (await _encode(services, text, request, caller, None))[0]


async def _encode(
    services: Services, text: ModelText, request: ChatRequest, caller: Caller, window: int | None
) -> tuple[bytes, str]:
    """The packed ids of the prompt, and the end of the rendered template, which may open the
    reasoning. Segments that are not cached are encoded, in a thread if they are long.
    """
    if request.prompt is not None:
        return await _encode_raw(services, text, request, caller, window), ""
    now = _local_time(int(time.time())) if text.tells_time else _NO_TIME
    shown = request.tools if request.shown_tools is None else request.shown_tools
    given = request.messages, shown, request.template_kwargs, now
    is_quick = is_quickly_rendered(request)
    if is_quick:
        segments = text.render_chat(*given)
    else:
        render = partial(text.render_chat, *given)
        segments = await services.encoding.run(caller, _num_chars(request), render)
    packed = await _encode_segments(services, text, request, caller, window, segments, is_quick)
    return packed, "".join(segments[-END_SEGMENTS:])


async def _encode_segments(
    services: Services,
    text: ModelText,
    request: ChatRequest,
    caller: Caller,
    window: int | None,
    segments: list[str],
    is_quick: bool,
) -> bytes:
    """The packed ids of segments, which are looked up in the loop if that `is_quick`."""
    salt = caller.key.encode() if caller.private_cache else b""
    if is_quick:
        draft = text.prompts.draft(segments, salt)
    else:
        long = LongPrompt(services.encoding, text, request, window)
        draft = await long.draft(caller, segments, salt)
    encoded = None
    if draft.missing:
        num_chars = sum(map(len, draft.missing))
        if num_chars > STEP_CHARS:
            long = LongPrompt(services.encoding, text, request, window)
            work = StepwiseDraft(text.prompts, draft)
            return await long.encode(caller, num_chars, work)
        missing = partial(text.prompts.encode, draft)
        is_short = num_chars <= INLINE_SIZE
        encoded = missing() if is_short else await services.encoding.run(caller, num_chars, missing)
    return text.prompts.finish(draft, encoded)


async def _encode_raw(
    services: Services, text: ModelText, request: ChatRequest, caller: Caller, window: int | None
) -> bytes:
    prompt, special = request.prompt or "", request.add_special_tokens
    if isinstance(prompt, str) and len(prompt) > STEP_CHARS:
        long = LongPrompt(services.encoding, text, request, window)
        await long.check(caller, [prompt])
        work = StepwiseText(text, prompt, add_special_tokens=special)
        return await long.encode(caller, len(prompt), work)
    encode = partial(encode_raw, text, prompt, add_special_tokens=special)
    if len(prompt) <= INLINE_SIZE:
        return pack_tokens(encode())
    return pack_tokens(await services.encoding.run(caller, len(prompt), encode))


@lru_cache(maxsize=1)
def _local_time(unix_s: int) -> datetime:
    """The local time for templates, without its zone as in transformers, cached for a second:
    finding the time zone takes 2 us.
    """
    return datetime.fromtimestamp(unix_s, UTC).astimezone().replace(tzinfo=None)


def _num_chars(request: ChatRequest) -> int:
    return sum(map(_message_chars, request.messages)) + len(request.prompt or ())


def _message_chars(message: Message) -> int:
    num_chars = MESSAGE_CHARS + len(message.content or "") + len(message.reasoning_content or "")
    num_chars += len(message.name or "") + len(message.tool_call_id or "")
    for call in message.tool_calls:
        num_chars += len(call.name) + len(call.arguments)
    return num_chars


def _needs_grammar(request: ChatRequest) -> bool:
    """Whether the answer may have to follow a grammar."""
    if request.grammar is not None:
        return True
    if not request.tools:
        return False
    return request.tool_choice == "required" or any(map(is_strict_tool, request.tools))
