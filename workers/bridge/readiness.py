"""The start of an engine until it has proved that it generates tokens.

Owns the wait until the engine answers, the two proofs (a few tokens, then one long prompt) and the
facts for the gateways. Only silence is a failure, and the supervisor judges it; so all progress is
reported. Must not know frames or the process of the engine.
"""

from __future__ import annotations

import logging
import math
import os
import time
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, final

import trio

from config import TEXT_ENGINE, WorkerConfig
from protocol.errors import ConfigError, HermaError, HttpError
from protocol.grammars import GrammarForm, capabilities_of
from protocol.messages import EngineFacts, RelayFacts
from protocol.probing import PROBE_TOKENS
from protocol.sampling import SamplingParams
from workers.bridge.engine_client import EngineClient, EngineRefusal
from workers.bridge.launched import group_cpu_s
from workers.external import (
    AnswerPiece,
    EngineApi,
    EngineError,
    EngineLimits,
    EngineTrouble,
    ExternalAnswer,
    phase_of,
)
from workers.ipc import StartSpeed
from workers.model_dir import CONFIG_NAME, GENERATION_NAME, read_eos_ids, read_vocab_size
from workers.scheduler import CARD_SEQS

_log = logging.getLogger("herma.bridge")

Report = Callable[[str, float, str], None]

SPEED_TOKENS: Final = 64
SPEED_S: Final = 5.0
"""How long the speed is measured. A slow engine needs longer for all tokens; the tokens that
arrived in this time are enough.
"""
_MIN_TIMED: Final = 8
_PROBE_IDS: Final = 100
"""Ids below this number exist in every vocabulary."""

_POLL_S: Final = 0.1
_REPORT_EVERY_S: Final = 0.5
_ALIVE_EVERY_S: Final = 5.0
_MIN_CPU_S: Final = 0.2
_MAX_DETAIL: Final = 200
_ANSWERING: Final = frozenset({200, 401, 403})


class NotProven(HermaError):
    """The engine answers, but gave no tokens. It may at a later try."""


@final
class StartReports:
    """Reports of a start, at most two a second and one at each new phase, because every gateway
    receives them.
    """

    def __init__(self, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._phase = "launch"
        self._fraction = 0.0
        self._reported_at = -_REPORT_EVERY_S
        self.is_over = False

    def line(self, text: str) -> None:
        """Take a line of the engine's log. Any new line is a sign of life; some name a phase."""
        if self.is_over:
            return
        phase, fraction = phase_of(text) or (self._phase, 0.0)
        self.say(phase, fraction, text)

    def say(self, phase: str, fraction: float, detail: str) -> None:
        """Send a report, unless one of the same phase was just sent. Within a phase the fraction
        never falls: most lines have none, and loaders of several files begin again.
        """
        now = self._clock()
        self._fraction = max(fraction, self._fraction if phase == self._phase else 0.0)
        if phase == self._phase and now - self._reported_at < _REPORT_EVERY_S:
            return
        self._phase, self._reported_at = phase, now
        self._report(phase, self._fraction, detail[:_MAX_DETAIL])

    async def watch_cpu(self) -> None:
        """Report CPU use of the launched engine as a sign of life, until cancelled."""
        before = 0.0
        while True:
            await trio.sleep(_ALIVE_EVERY_S)
            used = await trio.to_thread.run_sync(group_cpu_s)
            if used - before >= _MIN_CPU_S and not self.is_over:
                self.say(self._phase, 0.0, f"working: {used:.0f} s of CPU so far")
            before = used


async def wait_answering(client: EngineClient, reports: StartReports, *, is_launched: bool) -> None:
    """Return once the engine's health check answers 200, or asks for a key: the next question
    tells. An attached engine may be away for any time; that is no failure, but it is said at once.
    """
    began_at = trio.current_time()
    reported_at = -math.inf
    while True:
        try:
            status = await client.health()
            if status in _ANSWERING:
                return
            trouble = f"it answers {status}"
        except HttpError as error:
            trouble = str(error)
        now = trio.current_time()
        if not is_launched and now - reported_at >= _ALIVE_EVERY_S:
            if reported_at < began_at:
                _log.warning("no engine at %s: %s; trying again", client.url, trouble)
            reported_at = now
            reports.say(
                "attach", 0.0, f"no engine at {client.url}: {trouble}, for {now - began_at:.0f} s"
            )
        await trio.sleep(_POLL_S)


@final
class StopText:
    """The stop tokens and the size of the vocabulary, from the worker's model directory."""

    def __init__(self, model_dir: Path) -> None:
        """Raises `ConfigError` for files that cannot be read."""
        self.model_dir = model_dir
        has_config = (model_dir / CONFIG_NAME).is_file()
        names_end = has_config or (model_dir / GENERATION_NAME).is_file()
        self.eos_ids = frozenset(read_eos_ids(model_dir)) if names_end else frozenset[int]()
        self.vocab_size = read_vocab_size(model_dir) if has_config else None


async def prove(
    client: EngineClient,
    api: EngineApi,
    config: WorkerConfig,
    facts: EngineFacts,
    text: StopText,
    reports: StartReports,
) -> StartSpeed:
    """Let the engine generate tokens; then answer one long prompt, to find a death at the first
    large prompt before users do; then measure its speed. Raises `ConfigError` if a proof fails
    because of what was asked, `NotProven` if it failed otherwise.

    Reasoning needs no care here: the gateway finds it among the tokens.
    """
    reports.say("health probe", 0.0, f"{PROBE_TOKENS} tokens")
    await _Probe(client, api, text, reports).run(4, PROBE_TOKENS)
    longest = min(config.probe_context, facts.context_length - PROBE_TOKENS)
    long_probe = _Probe(client, api, text, reports)
    if longest > 4:
        reports.say("health probe", 0.5, f"a prompt of {longest} tokens")
        await long_probe.run(longest, PROBE_TOKENS)
    reports.say("health probe", 0.9, "its speed")
    speed_probe = _Probe(client, api, text, reports)
    with trio.move_on_after(SPEED_S):
        await speed_probe.run(4, min(SPEED_TOKENS, facts.context_length - 4))
    return StartSpeed(
        decode_tokens_per_s=speed_probe.decode_tokens_per_s,
        prefill_tokens_per_s=longest / long_probe.first_s if long_probe.first_s else 0.0,
        prompt_tokens=longest if long_probe.first_s else 0,
    )


@final
class _Probe:
    """One prompt of random ids. `first_s` is the time to the first token; 0 before it."""

    def __init__(
        self, client: EngineClient, api: EngineApi, text: StopText, reports: StartReports
    ) -> None:
        self.first_s = 0.0
        self._client = client
        self._api = api
        self._text = text
        self._reports = reports
        self._began_at = self._first_at = self._last_at = trio.current_time()
        self._num_later = 0
        self._num_signs = 0

    @property
    def decode_tokens_per_s(self) -> float:
        """The speed of the tokens after the first event; 0 if they are too few."""
        lasted_s = self._last_at - self._first_at
        return self._num_later / lasted_s if self._num_later >= _MIN_TIMED and lasted_s else 0.0

    async def run(self, num_prompt: int, num_outputs: int) -> None:
        """Answer the prompt. Raises `ConfigError` if the engine refuses it, `NotProven` for fewer
        tokens than `num_outputs` and for other errors.
        """
        # Each probe begins otherwise, so that the prefix cache does not contain it.
        ids = array("I", (1 + byte % (_PROBE_IDS - 1) for byte in os.urandom(num_prompt)))
        answer = ExternalAnswer(
            ids,
            array("I"),
            SamplingParams(max_tokens=num_outputs, temperature=0.0, ignore_eos=True),
            seed=0,
            salt=b"",
            max_outputs=num_outputs,
            eos_ids=self._text.eos_ids,
            vocab_size=self._text.vocab_size,
        )
        failed = f"the health probe of {num_prompt} prompt tokens"
        try:
            await self._client.answer(self._api, answer, partial(self._take, num_prompt))
        except EngineRefusal as error:
            kind = NotProven if error.reason == "busy" else ConfigError
            raise kind(f"{failed} failed: {error}") from error
        except EngineError as error:
            kind = NotProven if isinstance(error, EngineTrouble) else ConfigError
            raise kind(f"{failed} failed: {error}") from error
        if answer.num_outputs != num_outputs:
            raise NotProven(f"{failed} got {answer.num_outputs} of {num_outputs} tokens")

    def _take(self, num_prompt: int, piece: AnswerPiece | None) -> None:
        """Report an event. Every event is a sign of life, also within the prompt."""
        self._num_signs += 1
        what = "within the prompt" if piece is None else "with tokens"
        detail = f"event {self._num_signs}, {what} of {num_prompt}"
        self._reports.say("health probe", 0.5, detail)
        if piece is None:
            return
        self._last_at = trio.current_time()
        if not self.first_s:
            self._first_at = self._last_at
            self.first_s = self._first_at - self._began_at
        else:
            self._num_later += len(piece.ids)


def facts_of(
    config: WorkerConfig, limits: EngineLimits, forms: frozenset[GrammarForm] = frozenset()
) -> EngineFacts:
    """The facts for the gateways. The engine enforces grammars of these `forms`. Raises
    `ConfigError` if the context length is unknown.
    """
    known = [size for size in (limits.context_length, config.max_context) if size is not None]
    window = config.context_length
    if window is None:
        if limits.context_length is None:
            raise ConfigError(
                f"the engine at {config.url} does not say how long its window is: write "
                "`context_length = 32768`, or what it has, into the table [[workers]] with "
                f'`name = "{config.name}"` of the configuration file (herma.toml)'
            )
        window = min(known)
    elif limits.context_length is not None and window > limits.context_length:
        raise ConfigError(
            f"context_length {window} is more than the {limits.context_length} tokens of the "
            f"engine at {config.url}"
        )
    if limits.longest is not None and limits.longest < window:
        # SGLang starts so, and refuses longer prompts within an answer of status 200.
        _log.warning(
            "the memory of the engine at %s holds no sequence of %d tokens: the window is %d",
            config.url,
            window,
            limits.longest,
        )
        window = limits.longest
    wanted = config.max_seqs or limits.max_seqs or CARD_SEQS
    max_seqs = min(wanted, limits.max_seqs or wanted)
    kv_tokens = config.kv_tokens or limits.kv_tokens or window * max_seqs
    num_blocks = max(1, kv_tokens // config.block_size)
    return EngineFacts(
        kind=config.engine,
        device=str(config.url),
        dtype="unknown",
        context_length=window,
        block_size=config.block_size,
        kv_tokens=num_blocks * config.block_size,
        max_seqs=max_seqs,
        token_budget=config.token_budget,
        capabilities=capabilities_of(forms),
        files_digest=bytes(16),  # the supervisor reads the files and sets this
        relay=RelayFacts(config.model, config.refused_fields)
        if config.engine == TEXT_ENGINE
        else None,
    )
