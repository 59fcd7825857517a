"""Whether a text-level engine goes on with the text of an assistant, tried out at its start.

Owns the trial: a greedy answer, then the same answer asked for from its middle. Only an engine that
then says the rest to the byte goes on: many servers ignore the fields, and begin a new answer. Must
not know frames or the process of the engine.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import trio

from config import WorkerConfig
from protocol.errors import HttpError
from protocol.messages import EngineFacts
from protocol.prefill import PrefillForm, capability_of
from protocol.reading import FAULTS
from workers.bridge.engine_client import EngineClient
from workers.bridge.readiness import StartReports

TRIAL_TOKENS: Final = 24
TRIAL_S: Final = 20.0
"""A trial that takes longer says nothing; the engine is ready without it."""
_QUESTION: Final = "Write the numbers from one to twenty as words."
_TARGET: Final = "/v1/chat/completions"
_JSON: Final = [(b"content-type", b"application/json")]
_MAX_BYTES: Final = 2**20
_MIN_REST: Final = 4
_TRIED: Final[tuple[PrefillForm, ...]] = ("continue_final_message", "last_message")
"""The forms that are tried, in this order. `prefix` is a form of providers only."""


async def prefill_form(
    client: EngineClient, config: WorkerConfig, reports: StartReports
) -> PrefillForm | None:
    """The form in which the engine goes on with a text: the configured one, else the one that a
    trial finds; None if there is none.
    """
    if config.continues == "off":
        return None
    if config.continues != "auto":
        return config.continues
    reports.say("health probe", 0.9, "whether it goes on with an answer")
    with trio.move_on_after(TRIAL_S):
        return await _tried(client, config)
    return None


def with_form(facts: EngineFacts, form: PrefillForm | None) -> EngineFacts:
    """The facts with the form among the capabilities."""
    if form is None:
        return facts
    found = (*facts.capabilities, capability_of(form))
    return msgspec.structs.replace(facts, capabilities=found)


async def _tried(client: EngineClient, config: WorkerConfig) -> PrefillForm | None:
    whole = await _text(client, config, [], {})
    # The answer is cut before a space, because tokens of usual vocabularies have spaces only as
    # their first character.
    at = -1 if whole is None else whole.rfind(" ", 1, len(whole) // 2 + 1)
    if whole is None or at < 1 or not whole[:at].strip():
        return None
    begun = [{"role": "assistant", "content": whole[:at]}]
    for form in _TRIED:
        fields: dict[str, Any] = {}
        if form == "continue_final_message":
            fields = {form: True, "add_generation_prompt": False}
        if not fields.keys().isdisjoint(config.refused_fields):
            continue
        rest = await _text(client, config, begun, fields)
        if rest is not None and _goes_on(whole[at:], rest):
            return form
    return None


def _goes_on(expected: str, rest: str) -> bool:
    """Whether one text begins with the other, and not by chance."""
    size = min(len(expected), len(rest))
    return size >= _MIN_REST and expected[:size] == rest[:size]


async def _text(
    client: EngineClient, config: WorkerConfig, begun: list[Any], fields: dict[str, Any]
) -> str | None:
    """The text of a greedy answer; None if there is none, or if the engine thinks before it."""
    asked = {
        "model": config.model,
        "messages": [{"role": "user", "content": _QUESTION}, *begun],
        "max_tokens": TRIAL_TOKENS,
        "temperature": 0,
        **fields,
    }
    sent = {name: value for name, value in asked.items() if name not in config.refused_fields}
    body, answer = msgspec.json.encode(sent), bytearray()
    try:
        async with client.relay(_TARGET, _JSON, body, len(body)) as response:
            async for data in response.body:
                answer += data
                if len(answer) > _MAX_BYTES:
                    return None
            if response.status != 200:
                return None
        message = msgspec.json.decode(answer)["choices"][0]["message"]
        thought = message.get("reasoning_content") or message.get("reasoning")
        text = message.get("content")
    except (HttpError, *FAULTS, LookupError, TypeError, AttributeError):
        return None  # an error here only means that the form is not used
    return text if isinstance(text, str) and text and not thought else None
