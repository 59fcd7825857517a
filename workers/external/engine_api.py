"""The common part of the HTTP APIs of external engines: a job, an event, the interface of an
engine.

Owns the terms in which the bridge speaks of any engine, and the parsing of server-sent events and
metrics. Must not know sockets, nor the field names of one engine.
"""

from __future__ import annotations

import codecs
import json
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
from protocol.reading import FAULTS, read_object
from protocol.sampling import SamplingParams

_MOST: Final = 2**31 - 1
MAX_EVENT_BYTES: Final = 64 * 2**20
"""The most bytes of an event: by default SGLang repeats all ids of an answer in each event."""

_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\r?\n|\r\r")
_LINE: Final = re.compile(rb"[^\r\n]+")
_SAMPLE: Final = re.compile(r"([A-Za-z_:][\w:]*)(\{[^}]*\})?\s+(\S+)")

DONE: Final = b"[DONE]"

HEALTH_TARGETS: Final = ("/health",)


class OneHealthTarget:
    """The health check that an engine's own API is known to have."""

    health_targets: tuple[str, ...] = HEALTH_TARGETS

    def better_health(self, target: str, body: bytes) -> str | None:  # noqa: ARG002
        """None: no other target is better."""
        return None


@dataclass(frozen=True, slots=True)
class EngineJob:
    """What an engine is to generate. `ids` are the prompt and all outputs so far, `limit` is the
    number of outputs that may follow. The answer is streamed if `streamed`, else one piece. The
    `grammar` applies from the first new token.
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
class EngineEvent:
    """The content of one event of an engine. `finish` ends the answer; `matched` is the stop token
    that ended it, as the engine reports it. `gap` is the number of tokens that the engine left out,
    to be requested again in one piece.
    """

    ids: list[int]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: str | None = None
    matched: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    gap: int | None = None


class EngineError(WireError):
    """An engine reports an error within its answer, or the answer cannot be parsed."""


class EngineTrouble(EngineError):
    """The engine failed at an answer, or gave none of it. The same request may succeed later."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A POST with a JSON body."""

    target: str
    body: bytes


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The facts that an engine reports about itself; None if it does not report them. `longest` is
    the longest sequence that its memory holds, if that is shorter than its window. `other_model`
    is the only one in its list of models, if that is not the one that it is asked for.
    """

    context_length: int | None = None
    max_seqs: int | None = None
    kv_tokens: int | None = None
    version: str = ""
    longest: int | None = None
    other_model: str | None = None


def is_greedy(sampling: SamplingParams) -> bool:
    """Whether sampling always takes the most likely token, so that the seed has no effect."""
    return sampling.temperature == 0 or sampling.top_p == 0


def sampling_fields(sampling: SamplingParams) -> dict[str, Any]:
    """The request fields that all engines name alike. Each is written out, because the defaults of
    engines, some from generation_config.json, are not neutral.
    """
    return {
        "temperature": 0.0 if is_greedy(sampling) else sampling.temperature,
        "top_p": sampling.top_p or 1.0,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "ignore_eos": sampling.ignore_eos,
    }


class AnswerReader(Protocol):
    """The parser of the answer to one job."""

    def read(self, data: bytes) -> EngineEvent | None:
        """Parse the data of one server-sent event, or a whole answer; None if it says nothing of
        interest. Raises `EngineError`.
        """


class EngineQuestions(Protocol):
    """The questions to an engine besides its work. Pure, like the rest of an API."""

    @property
    def health_targets(self) -> tuple[str, ...]:
        """The targets of a health check, by preference; an engine has the first that answers."""

    def better_health(self, target: str, body: bytes) -> str | None:
        """A target that tells more than `target`, which has just answered 200 with `body`, and is
        known to be free at this engine; or None.
        """

    @property
    def fact_targets(self) -> tuple[str, ...]:
        """The targets to GET before the first job. Answers other than 200 are left out."""

    def limits(self, answers: Mapping[str, bytes]) -> EngineLimits:
        """The limits in the answers to `fact_targets`. Raises `ConfigError` for an engine that
        cannot serve.
        """

    def load(self, metrics: str) -> tuple[int, int]:
        """The running and waiting requests of all clients, from the text of /metrics."""


class SleepCalls(Protocol):
    """The calls of one kind of engine. `name` is the way, for people."""

    @property
    def name(self) -> str: ...

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets to GET for `refusal` and `is_asleep`. Answers other than 200 are left out."""

    @property
    def sleep(self) -> HttpRequest: ...

    @property
    def wake(self) -> HttpRequest: ...

    def refusal(self, answers: Mapping[str, bytes]) -> str:
        """Why this server cannot sleep and wake as it was, as it says itself; "" if it can."""

    def is_asleep(self, answers: Mapping[str, bytes]) -> bool | None:
        """Whether it sleeps; None if it has no way to say so."""


class EngineApi(EngineQuestions, Protocol):
    """The HTTP API of one kind of engine that takes token ids."""

    @property
    def sleep_calls(self) -> SleepCalls | None:
        """How it is put to sleep; None for an engine that can only end."""

    @property
    def grammar_forms(self) -> frozenset[GrammarForm]:
        """The forms of grammars that the engine enforces; final after `limits`."""

    def refusal(self, submit: Submit) -> str | None:
        """The feature of a submission that the engine lacks, in words; None if it has all."""

    def request(self, job: EngineJob) -> HttpRequest:
        """The request for a job."""

    def reader(self, job: EngineJob) -> AnswerReader:
        """The parser of the answer to `request(job)`."""


class EngineEventSplitter:
    """Splits a byte stream into the data of server-sent events. `is_between` is true while no
    incomplete event is buffered.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._has_begun = False

    @property
    def is_between(self) -> bool:
        return not self._pending

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that `data` completes. Raises `EngineError` for an event of more
        than 64 MiB. Comments are dropped; the data of an `error` line counts as data. A byte order
        mark may be before the first event.
        """
        if self._pending:
            data = self._pending + data
        if not self._has_begun:
            if codecs.BOM_UTF8.startswith(data):
                self._pending = data
                return []
            self._has_begun = True
            data = data.removeprefix(codecs.BOM_UTF8)
        *events, self._pending = _EVENT_END.split(data)
        if len(self._pending) > MAX_EVENT_BYTES:
            raise EngineError(f"an event is over {MAX_EVENT_BYTES} bytes")
        return [payload for event in events if (payload := _payload(event))]

    def flush(self) -> list[bytes]:
        """The data at the end of the stream: of an event without its blank line, or of a body that
        is no stream but one JSON object. Nothing of an object that breaks off.
        """
        rest = self._pending.strip()
        data = rest if rest.startswith(b"{") else _payload(rest)
        if data != DONE and not isinstance(any_json(data), dict):
            return []
        self._pending = b""
        return [data]


def _payload(event: bytes) -> bytes:
    # Most events have one line.
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    parts: list[bytes] = []
    for line in _LINE.findall(event):
        name, _, value = line.partition(b":")
        if name in {b"data", b"error"}:
            parts.append(value.removeprefix(b" "))
    return b"\n".join(parts)


def samples(metrics: str, name: str) -> list[tuple[str, float]]:
    """The labels and values of a metric in Prometheus' text format. Values that are not numbers are
    left out.
    """
    found: list[tuple[str, float]] = []
    for line in metrics.splitlines():
        if line.startswith(name) and (match := _SAMPLE.match(line)) and match[1] == name:
            with suppress(ValueError):
                found.append((match[2] or "", float(match[3])))
    return found


def total(metrics: str, name: str) -> int:
    """The sum of a metric over all labels; 0 if there is none."""
    return int(sum(value for _, value in samples(metrics, name) if 0 <= value < 2**53))


def load_of(metrics: str, running: str, waiting: str) -> tuple[int, int]:
    """Running and waiting requests, from the text of /metrics and the names of the two gauges."""
    return total(metrics, running), total(metrics, waiting)


def decoded(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:  # noqa: ANN401 - the decoder's type
    """Decode `data`. Raises `EngineError` if it is not of the decoder's type."""
    try:
        return decoder.decode(data)
    except FAULTS as error:
        raise EngineError(f"the engine's answer is not understood: {error}") from error


def json_object(answers: Mapping[str, bytes], target: str) -> dict[str, Any]:
    """The JSON object in the answer to `target`; empty if there is none."""
    return read_object(answers.get(target, b"")) or {}


def positive(value: object) -> int | None:
    """`value` if it is a positive integer, else None; also None for a number beyond any count, such
    as the 1e30 of tokenizers without a limit.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 < value <= _MOST else None


def error_text(value: object) -> str:
    """The text of an `error` field, which is a string or an object with a `message`."""
    if isinstance(value, dict):
        return str(value.get("message") or value)
    return str(value)


def error_in(data: bytes) -> str:
    """The text of an error in the data of an event, or in a body, in any of the forms that servers
    use; "" if there is no error. Some servers always send a field `error`, which is empty if there
    is none.
    """
    value = any_json(data)
    if not isinstance(value, dict):
        return ""
    error = value.get("error")
    if any(error.values()) if isinstance(error, dict) else error:
        return error_text(error)
    if "choices" in value or "usage" in value:
        return ""
    return next((str(value[name]) for name in ("message", "detail", "msg") if value.get(name)), "")


def any_json(data: bytes) -> object:
    """JSON in `data`, as tolerant as gateways read it; None if it is none."""
    text = data.removeprefix(codecs.BOM_UTF8).decode(errors="replace")
    try:
        value: object = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return value
