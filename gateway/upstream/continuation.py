"""The continuation of a cut text stream by another upstream: assistant prefill.

Owns which requests can be continued, the forms in which servers are asked to go on with an
assistant's text, and which known provider has which. Must not know which upstream is asked, or how
its chunks reach the client.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from gateway.api import BEGUN
from gateway.upstream.sent_answer import SentAnswer
from protocol.prefill import PrefillForm

_CONTINUE: Final = "continue_final_message"
_FIELDS: Final[dict[PrefillForm, frozenset[str]]] = {
    "continue_final_message": frozenset({_CONTINUE, "add_generation_prompt"}),
    "prefix": frozenset(),
    "last_message": frozenset(),
}
_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_CONSTRAINED: Final = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
    "json_schema",
    "grammar",
    "regex",
    "ebnf",
    "structural_tag",
    "choice",
)
_OTHER: Final = ("logprobs", "top_logprobs", "prompt_logprobs", "echo", "audio", "stop_token_ids")


class CannotContinue(NamedTuple):
    """No upstream can go on, for that reason."""

    why: str


def form_at(base_url: str) -> PrefillForm | None:
    """The form of a known provider. DeepSeek has it below `/beta` only."""
    parts = urlsplit(base_url)
    host = "." + (parts.hostname or "")
    if host.endswith(".deepseek.com"):
        return "prefix" if parts.path.rstrip("/").endswith("/beta") else None
    return "prefix" if host.endswith(".mistral.ai") else None


def is_same_model(one: str, other: str) -> bool:
    """Whether two upstreams' names are of one model: equal but for the owner before a slash."""
    return one.rpartition("/")[2].casefold() == other.rpartition("/")[2].casefold()


def obstacle_in(raw: dict[str, Any]) -> str | None:
    """Why an answer to the request `raw` cannot be continued behind its text; None if it can."""
    if raw.get("n") not in (None, 1):
        return "it has several choices"
    given = [name for name in _OTHER if raw.get(name)]
    given += [name for name in _CONSTRAINED if raw.get(name) is not None]
    form = raw.get("response_format")
    if isinstance(form, dict) and form.get("type") != "text":
        given.append("response_format")
    if isinstance(form := raw.get("tool_choice"), dict) or form == "required":
        given.append("tool_choice")
    if given:
        return f"the request has {given[0]}"
    return None


def hides_thoughts(raw: dict[str, Any]) -> bool:
    """Whether the request asks for thoughts that are not shown, or for thinking at all: an answer
    without visible thoughts then has hidden ones.
    """
    reasoning, thinking = raw.get("reasoning"), raw.get("thinking")
    if isinstance(reasoning, dict) and reasoning.get("enabled") is not False:
        return True
    if isinstance(thinking, dict) and thinking.get("type") != "disabled":
        return True
    return (
        raw.get("include_reasoning") is False
        or raw.get("reasoning_format") == "hidden"
        or raw.get("enable_thinking") is True
        or raw.get("reasoning_effort") not in (None, "none")
    )


def continued(
    raw: dict[str, Any], sent: SentAnswer, form: PrefillForm, reasoning_field: str | None = None
) -> dict[str, Any] | CannotContinue:
    """The request `raw` that goes on behind what was sent. `reasoning_field` is the name under
    which the upstream takes thoughts, if it is set.
    """
    why = obstacle_in(raw) or sent.obstacle()
    if why is None and hides_thoughts(raw) and not sent.reasoning:
        why = "its thoughts are hidden"
    if why is None and sent.reasoning and reasoning_field == "none":
        why = "the other upstream does not take its thoughts"
    if why is not None:
        return CannotContinue(why)
    message: dict[str, Any] = {"role": "assistant", "content": sent.text.rstrip()}
    messages = raw.get("messages")
    messages = list(messages) if isinstance(messages, list) else []
    if messages and isinstance(last := messages[-1], dict) and last.get("role") == "assistant":
        # The client's own beginning of the answer, which only some servers go on with.
        marked = raw.get(_CONTINUE) is True or any(last.get(name) is True for name in BEGUN)
        asked = marked or form == "last_message"
        if not asked or last.get("tool_calls") or not isinstance(last.get("content"), str):
            return CannotContinue("the conversation ends with an answer")
        messages.pop()
        message = {**last, "content": last["content"] + message["content"]}
    if sent.reasoning and sent.reasoning_field is not None:
        message[reasoning_field or sent.reasoning_field] = sent.reasoning
    changed = {**raw, "messages": [*messages, message]}
    if form == _CONTINUE:
        changed |= {_CONTINUE: True, "add_generation_prompt": False}
    elif form == "prefix":
        message["prefix"] = True
    return _with_limits(changed, sent.tokens)


def needs_dropped(form: PrefillForm, dropped: tuple[str, ...]) -> bool:
    """Whether the form needs a field that the upstream does not get."""
    return not _FIELDS[form].isdisjoint(dropped)


def stops_of(raw: dict[str, Any]) -> tuple[str, ...]:
    """The stop strings of a request."""
    stop = raw.get("stop")
    given = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    return tuple(one for one in given if isinstance(one, str) and one)


def limit_of(raw: dict[str, Any]) -> int | None:
    """The bound of a request on the tokens of its answer."""
    given = [raw.get(name) for name in _LIMITS]
    return min((one for one in given if isinstance(one, int)), default=None)


def _with_limits(raw: dict[str, Any], tokens: int) -> dict[str, Any]:
    """The bounds on the answer without the `tokens` that were sent."""
    for name, least in (*((name, 1) for name in _LIMITS), ("min_tokens", 0)):
        if isinstance(bound := raw.get(name), int):
            raw[name] = max(least, bound - tokens)
    return raw
