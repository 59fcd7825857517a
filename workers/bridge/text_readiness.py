"""The proof of a text-level engine: a short chat, then a long one.

Owns the requests and what counts as an answer. Must not know frames or the process of the engine.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from config import WorkerConfig
from protocol.errors import ConfigError
from protocol.messages import EngineFacts
from workers.bridge.engine_client import EngineClient
from workers.bridge.readiness import NotProven, StartReports
from workers.external import EngineError, EngineLimits, EngineTrouble, OpenAiApi, Proof

_log = logging.getLogger("herma.bridge")

TEXT_PROBE_TOKENS: Final = 16
"""The tokens of a probe's answer: a model that reasons begins with tokens that show no text."""
_JSON: Final = [(b"content-type", b"application/json")]


def warn_of_other_model(config: WorkerConfig, limits: EngineLimits) -> None:
    """Say that the only model in a text engine's list is not ours. Some engines answer by what they
    have, whatever they are asked for: one that was started again with another model would answer
    under the name of the one before.
    """
    if limits.other_model is not None:
        _log.warning(
            "the engine at %s lists one model, `%s`, and not `%s`: it may answer by another model "
            "than worker %s serves; if it is the same, write that name as `model` of the worker",
            config.url,
            limits.other_model,
            config.model,
            config.name,
        )


async def prove_text(
    client: EngineClient,
    api: OpenAiApi,
    config: WorkerConfig,
    facts: EngineFacts,
    reports: StartReports,
) -> None:
    """Prove that the engine generates text: a short chat, then a long one of at most about two
    tokens a word. Raises `ConfigError`, or `NotProven` if another try may succeed.
    """
    reports.say("health probe", 0.0, "a short chat")
    await _chat(client, api, 2, reports)
    longest = min(config.probe_context, facts.context_length - TEXT_PROBE_TOKENS) // 2
    if longest > 2:
        reports.say("health probe", 0.5, f"a chat of {longest} words")
        await _chat(client, api, longest, reports)


async def _chat(
    client: EngineClient, api: OpenAiApi, num_words: int, reports: StartReports
) -> None:
    request = api.probe(num_words, os.urandom(num_words), TEXT_PROBE_TOKENS)
    proof, body = Proof(), bytearray()
    try:
        async with client.relay(
            request.target,
            _JSON,
            request.body,
            len(request.body),
        ) as response:
            async for data in response.body:
                body += data
                reports.say("health probe", 0.5, f"{len(body)} bytes to {num_words} words")
                proof.take(data)
        proof.end(response.status, bytes(body))
    except EngineError as error:
        kind = NotProven if isinstance(error, EngineTrouble) else ConfigError
        raise kind(f"the health probe of {num_words} words failed: {error}") from error
