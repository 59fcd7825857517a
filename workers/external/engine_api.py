"""What the HTTP APIs of other people's engines have in common: a job, an event, a kind of engine.

Owns the terms in which the bridge speaks of any engine, and the reading of server-sent events and
metrics. Must not know sockets, nor what one engine calls a field.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from protocol.errors import WireError
from protocol.grammars import GrammarForm
from protocol.messages import Grammar, Submit, TokenLogprobs
from protocol.sampling import SamplingParams

MAX_EVENT_BYTES: Final = 64 * 2**20
"""SGLang repeats all ids of an answer in each event by default."""

_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE: Final = re.compile(rb"[^\r\n]+")
_SAMPLE: Final = re.compile(r"([A-Za-z_:][\w:]*)(\{[^}]*\})?\s+(\S+)")

DONE: Final = b"[DONE]"

HEALTH_TARGETS: Final = ("/health",)


@dataclass(frozen=True, slots=True)
class Job:
    """What to generate: `ids` are the prompt and all outputs so far, `limit` the outputs that may
    still come. Without `streamed` the answer comes in one piece. The `grammar` begins with the
    first of them.
    """

    ids: array[int]
    limit: int
    sampling: SamplingParams
    seed: int
    salt: bytes
    eos_ids: frozenset[int]
    streamed: bool = True
    grammar: Grammar | None = None


@dataclass(slots=True)
class Event:
    """What one event of an engine says. `finish` ends the answer, `matched` is the stop token that
    did it, as the engine says. `gap` asks for that many tokens again, in one piece: the engine has
    left some out.
    """

    ids: list[int]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: str | None = None
    matched: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    gap: int | None = None


class EngineError(WireError):
    """The engine reports an error in the middle of its answer, or its answer is not understood."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A POST with a JSON body."""

    target: str
    body: bytes


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What an engine says about itself; None is not said."""

    context_length: int | None = None
    max_seqs: int | None = None
    kv_tokens: int | None = None
    version: str = ""


def is_greedy(sampling: SamplingParams) -> bool:
    """Whether the likeliest token is always taken, so that a seed means nothing."""
    return sampling.temperature == 0 or sampling.top_p == 0


def sampling_fields(sampling: SamplingParams) -> dict[str, Any]:
    """The fields of a request that all engines name alike, each written out: their own defaults,
    some from generation_config.json, are not neutral.
    """
    return {
        "temperature": 0.0 if is_greedy(sampling) else sampling.temperature,
        "top_p": sampling.top_p or 1.0,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "ignore_eos": sampling.ignore_eos,
    }


class Reader(Protocol):
    """Reads the answer to one job."""

    def read(self, data: bytes) -> Event | None:
        """The event of an event's data, or of a whole answer; None if it says nothing of interest.
        Raises `EngineError`.
        """


class EngineQuestions(Protocol):
    """What is asked of an engine beside its work. Pure, as all of an API."""

    @property
    def health_targets(self) -> tuple[str, ...]:
        """What to GET to see whether it is well: the first that it has."""

    @property
    def fact_targets(self) -> tuple[str, ...]:
        """What to GET before the first job; an answer that is no 200 is left out."""

    def limits(self, answers: Mapping[str, bytes]) -> EngineLimits:
        """What the answers to `fact_targets` say. Raises `ConfigError` for an engine that cannot
        serve.
        """

    def load(self, metrics: str) -> tuple[int, int]:
        """Running and waiting requests, all clients' together, from the text of /metrics."""


class EngineApi(EngineQuestions, Protocol):
    """The HTTP API of one kind of engine that takes token ids: bodies for it, and its answers."""

    @property
    def grammar_forms(self) -> frozenset[GrammarForm]:
        """The forms of grammars that it enforces; final after `limits`."""

    def refusal(self, submit: Submit) -> str | None:
        """What of a submission this engine cannot do, by name; None if it can do all."""

    def request(self, job: Job) -> HttpRequest:
        """The request for a job."""

    def reader(self, job: Job) -> Reader:
        """Reads the answer to `request(job)`."""


class EventSplitter:
    """Bytes in, the data of whole server-sent events out. `is_between`: no part of an incomplete
    event is held.
    """

    def __init__(self) -> None:
        self._pending = b""

    @property
    def is_between(self) -> bool:
        return not self._pending

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that `data` completes. Raises `EngineError` for one of more than
        64 MiB. Comments are left out; the data of an `error` line counts as data.
        """
        if self._pending:
            data = self._pending + data
        *events, self._pending = _EVENT_END.split(data)
        if len(self._pending) > MAX_EVENT_BYTES:
            raise EngineError(f"an event is over {MAX_EVENT_BYTES} bytes")
        return [payload for event in events if (payload := _payload(event))]


def _payload(event: bytes) -> bytes:
    # The usual case: one line.
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    parts: list[bytes] = []
    for line in _LINE.findall(event):
        name, _, value = line.partition(b":")
        if name in {b"data", b"error"}:
            parts.append(value.removeprefix(b" "))
    return b"\n".join(parts)


def samples(metrics: str, name: str) -> list[tuple[str, float]]:
    """The labels and values of a metric in Prometheus' text form; values that are no numbers are
    left out.
    """
    found: list[tuple[str, float]] = []
    for line in metrics.splitlines():
        if line.startswith(name) and (match := _SAMPLE.match(line)) and match[1] == name:
            with suppress(ValueError):
                found.append((match[2] or "", float(match[3])))
    return found


def total(metrics: str, name: str) -> int:
    """The sum over all labels; 0 if there is none."""
    return int(sum(value for _, value in samples(metrics, name) if 0 <= value < 2**53))


def load_of(metrics: str, running: str, waiting: str) -> tuple[int, int]:
    """Running and waiting requests, from the text of /metrics, by the names of its two gauges."""
    return total(metrics, running), total(metrics, waiting)


def decoded(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:  # noqa: ANN401 - the decoder's type
    """Raises `EngineError` for anything but the decoder's type."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"the engine's answer is not understood: {error}") from error


def json_object(answers: Mapping[str, bytes], target: str) -> dict[str, Any]:
    """The object that the engine answers there; empty if it answered none."""
    try:
        value = msgspec.json.decode(answers.get(target, b"{}"))
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def positive(value: object) -> int | None:
    """`value` if it is a count over zero."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def error_text(value: object) -> str:
    """The words of an `error` field, which is a text or an object with a `message`."""
    if isinstance(value, dict):
        return str(value.get("message", value))
    return str(value)
