"""The text side of one model: tokenizer, chat template, the ids that end an answer.

Reads a model's text files as they come over the wire. Building a `ModelText` takes 100 ms and more
for a real tokenizer: build it in a thread and keep it. Encoding and rendering may run in several
threads at once. Must not know workers, routes or HTTP.
"""

import codecs
import copy
import json
import math
from array import array
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from gateway.api import Message, invalid
from gateway.output import (
    AUTO,
    AnswerFormat,
    ByteDetokenizer,
    ByteTable,
    Detokenizer,
    StreamDetokenizer,
    StreamTokenBytes,
    TokenBytes,
    answer_format,
)
from gateway.output.tools import Opening
from gateway.prompt.control_tokens import MARK, ControlTokens
from gateway.prompt.prompt_encoder import PromptEncoder
from gateway.prompt.token_bound import token_bound
from gateway.prompt.tokenizer import Encoder, TokenizerFaults, encode_batch, is_byte_level
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams

if TYPE_CHECKING:
    from gateway.prompt.chat_template import ChatTemplate

_TOKEN_VARIABLES: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)

_TOKEN_TABLES: Final = ("extra_special_tokens", "model_specific_special_tokens")
"""Tables of further tokens by name in tokenizer_config.json; the first may be a list without names.
"""

_TIME: Final = "strftime_now"
_DEFAULT: Final = "default"
_WITH_TOOLS: Final = "tool_use"
"""transformers' names of the template for all requests, and of the one for those with tools."""

_TEMPLATE_FILES: Final = {
    _DEFAULT: "chat_template.jinja",
    _WITH_TOOLS: "additional_chat_templates/tool_use.jinja",
}
_PROCESSORS_FILE: Final = "chat_template.json"

_BYTE_ORDER: Final = "\ufeff"
"""The mark at the beginning of a text."""

_MISSHAPEN: Final = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)

_ENDLESS: Final = (
    "no file names a token that ends an answer (eos_token_id in generation_config.json, eos_token "
    "in tokenizer_config.json): answers end at their bound alone"
)
_SAMPLING_DEFAULTS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class ModelText:
    """The text side of a model, from its files by name; `tokenizer.json` is required.

    `eos_ids` end an answer. `sampling_defaults` are the model authors' advice, used where a client
    sets nothing (`ChatRequest.sampling` takes them). `tells_time`: the template may read the time.
    `chat_template` is the source of the template; behind it that of the one for requests with
    tools, if the model has two. Raises `ConfigError` naming the file that is missing or broken.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        if "tokenizer.json" not in files:
            raise ConfigError("the model has no tokenizer.json; only fast tokenizers are served")
        config = _json(files, "tokenizer_config.json")
        generation = _json(files, "generation_config.json")
        tokenizer_json = files["tokenizer.json"].removeprefix(codecs.BOM_UTF8)
        self.encoder = Encoder(tokenizer_json, config.get("added_tokens_decoder"))
        sources = _template_sources(files, config)
        self.chat_template = "\n".join(sources.values()) or None
        self.eos_ids = self._find_eos_ids(generation, _json(files, "config.json"), config)
        self.sampling_defaults, self._misstated = _sampling_defaults(generation)
        self._control = ControlTokens(self.encoder.control)
        self.prompts = PromptEncoder(self.encoder, self._control)
        self._forms: dict[tuple[str, str], AnswerFormat] = {}
        self.tells_time = _TIME in (self.chat_template or "")
        self._names = {**_json(files, "special_tokens_map.json"), **config}
        self._templates = self._compile(sources, self._names)
        tokens = {name: _token_text(self._names.get(name)) for name in _TOKEN_VARIABLES}
        self.tokenizer_info: dict[str, Any] = {
            "tokenizer_class": config.get("tokenizer_class"),
            **tokens,
            "chat_template": sources.get(_DEFAULT),
        }
        """The facts for clients that encode and render themselves."""
        tokenizer = self.encoder.tokenizer
        self.bound = token_bound(tokenizer, tokenizer_json)
        """The fewest tokens of a text, where its bytes tell."""
        is_bytes = is_byte_level(tokenizer_json)
        self._tables: dict[frozenset[str], ByteTable] | None = {} if is_bytes else None
        # A model is asked for two or three formats, so this cache stays small.
        self._shown: dict[AnswerFormat | None, frozenset[str]] = {None: frozenset()}
        self.token_bytes: TokenBytes = (
            ByteTable(tokenizer) if is_bytes else StreamTokenBytes(tokenizer)
        )

    def with_template(self, source: str) -> "ModelText":
        """The same model with this template for all requests. Raises `ConfigError` for a source
        that is not a template.
        """
        other = copy.copy(self)
        other.chat_template = source
        other.tells_time = _TIME in source
        other.tokenizer_info = {**self.tokenizer_info, "chat_template": source}
        other._forms = {}  # noqa: SLF001 - a copy of this
        other._templates = self._compile({_DEFAULT: source}, self._names)  # noqa: SLF001
        return other

    @property
    def remarks(self) -> list[str]:
        """Remarks about the model's text files for operators, a line each."""
        remarks = [*self._misstated] if self.eos_ids else [_ENDLESS, *self._misstated]
        for name, template in self._templates.items():
            which = "" if name == _DEFAULT else f" {name}"
            remarks += [f"its chat template{which}: {remark}" for remark in template.remarks]
        return remarks

    @property
    def shows_questions(self) -> bool:
        """Whether the prompt of a chat has all that users say."""
        return all(template.shows_questions for template in self._templates.values())

    @property
    def vocab_size(self) -> int:
        """Number of ids that the tokenizer knows, added tokens included."""
        return self.encoder.vocab_size

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        template_kwargs: Mapping[str, Any],
        now: datetime,
    ) -> "array[int]":
        """The ids of a prompt, rendered and encoded as a whole, in any thread."""
        segments = self.render_chat(messages, tools, template_kwargs, now)
        return self.encoder.encode(self._control.read(segments))

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        template_kwargs: Mapping[str, Any],
        now: datetime,
    ) -> list[str]:
        """The prompt's segments, for `prompts` to encode. Only the template's control tokens are
        control tokens; elsewhere they are text. Raises `ApiError` 400 if the template refuses, or
        if the model has none.
        """
        template = self._templates.get(_DEFAULT)
        if tools:
            template = self._templates.get(_WITH_TOOLS, template)
        if template is None:
            text = "The model has no chat template, so it cannot answer chat messages."
            raise invalid("model", text, code="no_chat_template")
        return template.render(messages, tools, now, template_kwargs=template_kwargs)

    def encode_opening(self, opening: Opening) -> "array[int]":
        """The ids of the beginning of a call, for the end of a prompt."""
        return self.encoder.encode(self._control.read(self.opening_segments(opening)))

    def opening_segments(self, opening: Opening) -> list[str]:
        """The beginning of a call in segments, for `prompts` to encode, as it may be long. Control
        tokens in the tool's name are text.
        """
        before, after = self._control.mark(opening.before), self._control.mark(opening.after)
        name = opening.name.replace(MARK, "")
        return (before + name + after).split(MARK)

    def answer_start_segments(self, form: AnswerFormat, end: str, start: str) -> list[str]:
        """The beginning of an answer in segments, behind a prompt with this end. Control tokens in
        `start` are text.
        """
        return self.opening_segments(Opening(form.past_reasoning(end), start))

    def lone_id(self, text: str) -> int | None:
        """The token that is this text, if there is one."""
        return self.encoder.tokenizer.token_to_id(text)

    def answer_format(self, tool_parser: str = AUTO, reasoning_parser: str = AUTO) -> AnswerFormat:
        """How the model writes calls and reasoning, by its template unless parsers are named."""
        names = (tool_parser, reasoning_parser)
        if names not in self._forms:
            self._forms[names] = answer_format(self.chat_template, *names)
        return self._forms[names]

    def decoder(self, form: AnswerFormat | None = None) -> Detokenizer:
        """A new detokenizer for one sequence; markup of `form` is part of its text."""
        if form is not None and form not in self._shown:
            self._shown[form] = form.shown(self.encoder.control)
        shown = self._shown[form]
        if self._tables is None:
            return StreamDetokenizer(self.encoder.tokenizer, shown)
        if shown not in self._tables:
            self._tables[shown] = ByteTable(self.encoder.tokenizer, shown)
        return ByteDetokenizer(self._tables[shown])

    def _compile(
        self, sources: Mapping[str, str], names: Mapping[str, Any]
    ) -> "dict[str, ChatTemplate]":
        if not sources:
            return {}
        # Importing Jinja takes a tenth of the gateway's start, and only models need it.
        from gateway.prompt.chat_template import ChatTemplate  # noqa: PLC0415

        variables = _named_tokens(names)
        return {
            name: ChatTemplate(source, self._control, variables) for name, source in sources.items()
        }

    def _find_eos_ids(
        self, generation: dict[str, Any], model: dict[str, Any], tokenizer: dict[str, Any]
    ) -> frozenset[int]:
        """The ids of generation_config.json, else of config.json, and the tokenizer's own: each
        file may name fewer than the model writes, as a generation_config.json with the end of a
        document alone beside a chat model's tokenizer. -1 is none.
        """
        text = model.get("text_config")  # in a model with a vision tower
        tables = generation, model, text if isinstance(text, dict) else {}
        stated = map(end_ids, (table.get("eos_token_id") for table in tables))
        found = next((ids for ids in stated if ids), frozenset())
        eos = _token_text(tokenizer.get("eos_token"))
        token_id = None if eos is None else self.encoder.tokenizer.token_to_id(eos)
        return found if token_id is None else found | {token_id}


def end_ids(stated: object) -> frozenset[int]:
    """An `eos_token_id`, which is one id, a list of ids or null. Others than ids are left out."""
    ids = stated if isinstance(stated, list) else [stated]
    return frozenset(one for one in ids if type(one) is int and one >= 0)


def check_template(source: str) -> None:
    """Raise `ConfigError` if `source` is not a template."""
    from gateway.prompt.chat_template import ChatTemplate  # noqa: PLC0415 - as in `ModelText`

    ChatTemplate(source, ControlTokens(()))


def read_model_text(files: Mapping[str, bytes]) -> ModelText:
    """The `ModelText` of files that a worker sent. Raises `ConfigError` for any broken file."""
    try:
        with TokenizerFaults():
            return ModelText(files)
    except _MISSHAPEN as error:
        text = f"the model's text files have a shape that is not known ({error!r})"
        raise ConfigError(text) from error


def encode_raw(
    text: ModelText, prompt: str | Sequence[int], *, add_special_tokens: bool = True
) -> "array[int]":
    """The ids of a prompt without any chat around it, as `array("I")`: the client writes all of it,
    so control tokens spelled in it are control tokens.

    `add_special_tokens`: with those that the tokenizer puts around a text. Raises `ApiError` 400
    for no tokens at all, and for ids that the model does not know.
    """
    if not isinstance(prompt, str):
        ids = array("I", checked_ids(text, prompt, "prompt"))
    else:
        tokenizer = text.encoder.tokenizer
        encodings = encode_batch(tokenizer, [prompt], add_special_tokens=add_special_tokens)
        ids = array("I", encodings[0].ids)
    if not ids:
        raise invalid("prompt", "'prompt' has no tokens; a model needs at least one to go on from.")
    return ids


def checked_ids(text: ModelText, ids: Sequence[int], param: str) -> Sequence[int]:
    """`ids`. Raises `ApiError` 400 naming the first that the model does not know."""
    size = text.vocab_size
    if ids and max(ids) >= size:
        at, wrong = next((at, one) for at, one in enumerate(ids) if one >= size)
        raise invalid(
            f"{param}[{at}]",
            f"'{param}[{at}]' is {wrong}, but the model's vocabulary ends at {size - 1}.",
        )
    return ids


def decode_raw(text: ModelText, ids: Sequence[int]) -> str:
    """The text of `ids`, with control tokens."""
    return text.encoder.tokenizer.decode(list(ids), skip_special_tokens=False)


def token_strings(text: ModelText, ids: Sequence[int]) -> list[str]:
    """Each token as the vocabulary spells it."""
    return [text.encoder.tokenizer.id_to_token(token_id) or "" for token_id in ids]


def _json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The object in that file; an empty one if there is none. Python's json writes and reads bare
    `Infinity` and `NaN`, which published files have for a limit that is none.
    """
    if name not in files:
        return {}
    try:
        found = json.loads(files[name].decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the model's {name} is not a JSON object: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"the model's {name} is not a JSON object: it is {type(found).__name__}")
    return found


def _template_sources(files: Mapping[str, bytes], config: dict[str, Any]) -> dict[str, str]:
    """The templates by name, as transformers chooses them: files of their own go before the
    template, or the list of named ones, in the tokenizer's config. What a processor has instead of
    these counts last, since transformers' tokenizers do not read it. Where none is named "default",
    one of the others serves requests without tools.
    """
    own: dict[str, Any] = {
        name: _text(files, path) for name, path in _TEMPLATE_FILES.items() if path in files
    }
    if _DEFAULT not in own:
        stated = config.get("chat_template")
        if stated is None:
            stated = _json(files, _PROCESSORS_FILE).get("chat_template")
        if isinstance(stated, list):
            stated = {entry["name"]: entry["template"] for entry in stated}
        elif not isinstance(stated, dict):
            stated = {_DEFAULT: stated}
        own = {**stated, **own}
    named = {
        name: source.removeprefix(_BYTE_ORDER)
        for name, source in own.items()
        if isinstance(source, str)
    }
    if named and _DEFAULT not in named:
        named[_DEFAULT] = named.get(_WITH_TOOLS) or next(iter(named.values()))
    return {name: named[name] for name in (_DEFAULT, _WITH_TOOLS) if name in named}


def _text(files: Mapping[str, bytes], name: str) -> str:
    try:
        return files[name].decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the model's {name} is not UTF-8: {error}") from error


def _token_text(value: object) -> str | None:
    """A token as the configs write it: its text, or an object with it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The tokens that templates may name: bos_token and its like, and those that a model has beside
    these, as `image_token`, under keys of their own or in a table of such.
    """
    named = {name: value for name, value in config.items() if name.endswith("_token")}
    for key in _TOKEN_TABLES:
        table = config.get(key)
        named |= table if isinstance(table, dict) else {}
    texts = {name: _token_text(value) for name, value in named.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _sampling_defaults(generation: dict[str, Any]) -> tuple[dict[str, float], list[str]]:
    """What the model's authors advise, and a line for each value that no sampler takes. Every
    request that states nothing has these values, so a wrong one would refuse them all.
    """
    if generation.get("do_sample") is False:
        return {"temperature": 0.0}, []
    taken: dict[str, float] = {}
    remarks = []
    for name in _SAMPLING_DEFAULTS:
        if (stated := generation.get(name)) is None:
            continue
        value = _sampling_value(name, stated)
        if value is None:
            remarks.append(
                f"generation_config.json: {name} = {stated!r} is no value of it: ignored"
            )
        else:
            taken[name] = value
    return taken, remarks


def _sampling_value(name: str, stated: object) -> float | None:
    """The value as samplers take it; None if it is none. `top_k` is off at -1 too, and a whole
    number where a program wrote it as 50.0.
    """
    if not isinstance(stated, int | float) or isinstance(stated, bool):
        return None
    value: float = stated
    if name == "top_k" and math.isfinite(value) and value == int(value):
        value = max(int(value), 0)
    try:
        SamplingParams(1, **{name: value})  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return None
    return value if name != "top_k" or isinstance(value, int) else None
