"""A chat completion request, checked.

Owns the typed form that the rest of the gateway reads and how it becomes sampling parameters.
Must not know JSON (`chat_parser.py` parses) nor templates (`chat_template.py` makes their dicts).
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from gateway.api.errors import ApiError, invalid
from protocol.sampling import SamplingParams

Role = Literal["system", "developer", "user", "assistant", "tool"]

ToolChoice = Literal["none", "auto", "required"]

MAX_SESSION_CHARS: Final = 256
"""Thousands of conversations are remembered by name."""

_NO_DEFAULTS: Final[Mapping[str, float]] = {}
_NEUTRAL: Final[Mapping[str, Any]] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""What models' authors advise on, where they do not."""


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the assistant made earlier; `arguments` is the text that it wrote."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True):
    """One message of the conversation. Text parts are joined by a newline."""

    role: Role
    content: str | None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class OtherPart(msgspec.Struct, frozen=True):
    """A content part that is no text, so that only a provider can read it."""

    where: str
    kind: str

    def refusal(self) -> ApiError:
        """What a client is told when no provider may answer."""
        text = (
            f"'{self.where}' is a part of type {self.kind!r}; only parts of type 'text' are served."
        )
        return invalid(f"{self.where}.type", text, code="unsupported_content_part")


class ChatRequest(msgspec.Struct, frozen=True):
    """What the client asked for. None means that it did not say.

    `tools` are those to show to the model (none with tool_choice "none", only the named one if
    one was named). `seed` is within 63 bits, whatever the client wrote. `session` is the affinity
    hint found in the body. `other_part` is the first part that `messages` lack; `has_bias`: there
    is a logit bias. `raw` is the body as decoded, unknown fields intact, for a provider; nobody may
    change it. `fingerprint` is equal for equal bytes of the body, of which there are `num_bytes`.

    A raw completion has a `prompt` (text, or token ids) and no `messages`; `add_special_tokens`:
    the text gets those that the tokenizer puts around a text.
    """

    model: str
    messages: tuple[Message, ...]
    raw: dict[str, Any]
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: ToolChoice = "auto"
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    template_kwargs: dict[str, Any] = {}
    session: str | None = None
    other_part: OtherPart | None = None
    has_bias: bool = False
    fingerprint: bytes = b""
    num_bytes: int | None = None
    prompt: str | tuple[int, ...] | None = None
    add_special_tokens: bool = True

    @property
    def prompt_field(self) -> str:
        """The field of the body that the prompt comes from."""
        return "messages" if self.prompt is None else "prompt"

    @property
    def refused_locally(self) -> ApiError | None:
        """Why no worker can answer it, though a provider may."""
        if self.other_part is not None:
            return self.other_part.refusal()
        if self.has_bias:
            text = "'logit_bias' is not served by local models; send the request without it."
            return invalid("logit_bias", text, code="logit_bias_not_served")
        return None

    def sampling(
        self, max_tokens: int, defaults: Mapping[str, float] = _NO_DEFAULTS
    ) -> SamplingParams:
        """How a worker samples this request, at most `max_tokens` (>= 1) tokens.

        `defaults` (the model's generation config) fill what the client left open, then the
        neutral values do. Raises `ApiError` 400 for a value that no worker accepts.
        """
        # Written out: a loop over the names, or a dict passed on, takes four times as long.
        rest = {**_NEUTRAL, **defaults}
        try:
            return SamplingParams(
                max_tokens=max_tokens,
                temperature=rest["temperature"] if self.temperature is None else self.temperature,
                top_p=rest["top_p"] if self.top_p is None else self.top_p,
                top_k=rest["top_k"] if self.top_k is None else self.top_k,
                min_p=rest["min_p"] if self.min_p is None else self.min_p,
                presence_penalty=self.presence_penalty or 0.0,
                frequency_penalty=self.frequency_penalty or 0.0,
                repetition_penalty=rest["repetition_penalty"]
                if self.repetition_penalty is None
                else self.repetition_penalty,
                stop_token_ids=self.stop_token_ids,
                ignore_eos=self.ignore_eos,
                logprobs=self.top_logprobs if self.logprobs else None,
            )
        except ValueError as error:
            raise invalid(str(error).partition(" ")[0], str(error)) from error
