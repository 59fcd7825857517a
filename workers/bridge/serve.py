"""Serves an external engine, from a worker's configuration to the end.

Owns the order: launch or attach, wait, prove, serve, end. Must not know the content of frames or
the engine's fields.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Final, final

import trio

from config import TEXT_ENGINE, WorkerConfig, secret_of
from protocol.errors import ConfigError, ConnectError, HttpError
from protocol.grammars import GrammarForm
from protocol.messages import EngineFacts
from workers.bridge.bridge import Bridge
from workers.bridge.driver_sleep import DriverSleep
from workers.bridge.engine_client import EngineClient, EngineGone
from workers.bridge.engine_sleep import EngineSleep
from workers.bridge.kv_feed import KvFeed
from workers.bridge.launched import LaunchedEngine, launch, pass_on
from workers.bridge.model_window import with_models_window
from workers.bridge.outbox import Outbox
from workers.bridge.prefill import prefill_form, with_form
from workers.bridge.readiness import (
    NotProven,
    Report,
    StartReports,
    StopText,
    facts_of,
    prove,
    wait_answering,
)
from workers.bridge.relays import Relays
from workers.bridge.sequences import Sequences
from workers.bridge.text_readiness import prove_text, warn_of_other_model
from workers.bridge.work import Holdings
from workers.external import (
    ApproximateBlocks,
    EngineApi,
    LlamaCppApi,
    OpenAiApi,
    SglangApi,
    VllmApi,
)
from workers.ipc import EngineReady, StartSpeed
from workers.loop import Channel, EngineBroken, EngineStatus
from workers.model_dir import engine_model_dir
from workers.scheduler import CARD_SEQS

_APIS: Final[dict[str, type[VllmApi] | type[SglangApi] | type[LlamaCppApi]]] = {
    "vllm": VllmApi,
    "sglang": SglangApi,
    "llama-cpp": LlamaCppApi,
}
_PROVE_AGAIN_S: Final = 1.0
_PROOF_SHARE: Final = 0.8
"""A proof of an attached engine may take this share of `stall_s`; then it is tried again."""
_SPARE_CONNECTIONS: Final = 8
_END_S: Final = 1.5
"""Less than the two seconds that the supervisor waits after `Shutdown`."""
_EXIT_CODE_S: Final = 0.25
"""The exit code of a launched engine says why it is gone, and arrives within this time."""


def serve_external(
    config: WorkerConfig, channel: Channel, status: EngineStatus, report: Report, *, epoch: int
) -> None:
    """Serve until `Shutdown`. Raises `ConfigError`, or `EngineBroken` if the engine is gone. If a
    launched engine ends, this process ends with its exit code.
    """
    trio.run(_Service(config, channel, status, report, epoch).run)


@final
class _Service:
    """One life of the bridge."""

    def __init__(
        self,
        config: WorkerConfig,
        channel: Channel,
        status: EngineStatus,
        report: Report,
        epoch: int,
    ) -> None:
        self._config = config
        self._channel = channel
        self._status = status
        self._reports = StartReports(report)
        self._epoch = epoch
        self._api: EngineApi | OpenAiApi = (
            OpenAiApi(config.model) if config.engine == TEXT_ENGINE else _APIS[config.engine]()
        )
        self._text = None if config.engine == TEXT_ENGINE else StopText(engine_model_dir(config))
        assert config.url is not None
        max_seqs = config.max_seqs or CARD_SEQS
        self._client = EngineClient(
            config.url,
            self._api,
            api_key=secret_of(f"worker `{config.name}`", config.api_key_env, None, os.environ),
            max_connections=max_seqs + config.max_waiting + _SPARE_CONNECTIONS,
            health=config.health,
        )
        self._engine: LaunchedEngine | None = None
        self._sleeps: tuple[EngineSleep, ...] = ()
        self._trouble: Exception | None = None

    async def run(self) -> None:
        if self._config.launch is not None:
            await self._launch()
        async with trio.open_nursery() as nursery:
            if self._engine is not None:
                nursery.start_soon(self._engine.end_process, "engine")
                nursery.start_soon(self._reports.watch_cpu)
            try:
                await self._serve(nursery)
            except (ConfigError, EngineGone, HttpError) as error:
                self._trouble = error
                if self._engine is not None:
                    await trio.sleep(_EXIT_CODE_S)
            nursery.cancel_scope.cancel()
        for sleep in self._sleeps:
            await sleep.close()
        self._client.close()
        if isinstance(self._trouble, ConfigError):
            raise self._trouble
        if self._trouble is not None:
            raise EngineBroken(str(self._trouble))

    async def _launch(self) -> None:
        assert self._config.launch is not None
        try:
            await self._client.health()
        except ConnectError:
            pass
        except HttpError as error:
            raise EngineBroken(self._in_use(f"something there: {error}")) from error
        else:
            raise EngineBroken(self._in_use("another server answers there"))
        on_line = partial(pass_on, self._reports.line)
        self._engine = await launch(self._config.launch, os.environ, on_line)
        self._reports.say("launch", 0.0, f"pid {self._engine.pid}")

    def _in_use(self, what: str) -> str:
        return f"{self._config.url}: address already in use before the start ({what})"

    async def _serve(self, nursery: trio.Nursery) -> None:
        is_launched = self._engine is not None
        await wait_answering(self._client, self._reports, is_launched=is_launched)
        limits = await self._client.limits()
        warn_of_other_model(self._config, limits)
        limits = await trio.to_thread.run_sync(with_models_window, self._config, limits)
        api = self._api
        forms = frozenset[GrammarForm]() if isinstance(api, OpenAiApi) else api.grammar_forms
        facts = facts_of(self._config, limits, forms)
        outbox = Outbox(self._channel, self._status)
        holdings = self._holdings(facts, outbox)
        work, speed = await self._until_proven(facts, outbox, holdings)
        if isinstance(api, OpenAiApi):
            form = await prefill_form(self._client, self._config, self._reports)
            facts = with_form(facts, form)
        self._sleeps = self._sleep_ways()
        offers = [(sleep.name, await sleep.refusal()) for sleep in self._sleeps]
        (way, refusal), *more_ways = offers or [("", "")]
        self._reports.is_over = True
        self._status.phase = ""
        bridge = Bridge(
            self._config,
            facts,
            self._client,
            self._channel,
            self._status,
            outbox,
            work,
            holdings,
            epoch=self._epoch,
            sleeps=self._sleeps,
        )
        model_dir = "" if self._text is None else str(self._text.model_dir)
        outbox.send_control(
            EngineReady(
                facts,
                model_dir,
                speed,
                limits.version,
                sleep_way=way,
                sleep_refusal=refusal,
                more_ways=tuple(more_ways),
            )
        )
        if isinstance(holdings, KvFeed):
            nursery.start_soon(holdings.run)
        await bridge.run()
        if self._engine is not None:
            # We asked it to end, so its exit code does not matter.
            await self._engine.end(_END_S)

    def _sleep_ways(self) -> tuple[EngineSleep, ...]:
        """The ways in which the engine may sleep without an end, the best first."""
        api, text = self._api, self._text
        if isinstance(api, OpenAiApi) or text is None:
            return ()
        found = []
        if api.sleep_calls is not None:
            found.append(EngineSleep(self._client, api, api.sleep_calls, text))
        is_asked = self._config.residency == "on-demand" and self._config.device != "cpu"
        if self._engine is not None and is_asked:
            found.append(EngineSleep(self._client, api, DriverSleep(self._engine.pid), text))
        return tuple(found)

    def _holdings(self, facts: EngineFacts, outbox: Outbox) -> ApproximateBlocks | KvFeed:
        """The engine's blocks: from its KV events if it publishes them, else an estimate."""
        if self._config.kv_events is not None:
            return KvFeed(self._config, self._config.kv_events, facts, outbox)
        return ApproximateBlocks(
            block_size=facts.block_size,
            capacity_blocks=facts.kv_tokens // facts.block_size,
            slack_blocks=2,
        )

    async def _until_proven(
        self, facts: EngineFacts, outbox: Outbox, holdings: Holdings
    ) -> tuple[Sequences | Relays, StartSpeed]:
        """Like `_proven_work`, but an attached engine that gives no tokens is tried again without a
        time limit, because a worker can restart only an engine that it launched. Raises
        `ConfigError` or `EngineBroken`.
        """
        while True:
            try:
                if self._engine is not None:
                    return await self._proven_work(facts, outbox, holdings)
                with trio.fail_after(_PROOF_SHARE * self._config.stall_s):
                    return await self._proven_work(facts, outbox, holdings)
            except NotProven as error:
                if self._engine is not None:
                    raise EngineBroken(str(error)) from error
                trouble = str(error)
            except HttpError as error:
                if self._engine is not None:
                    raise
                trouble = f"the health probe broke off: {error}"
            except trio.TooSlowError:
                trouble = "the health probe got no answer in time"
            self._reports.say("attach", 0.0, f"{self._client.url} {trouble}; trying again")
            await trio.sleep(_PROVE_AGAIN_S)
            await wait_answering(self._client, self._reports, is_launched=False)

    async def _proven_work(
        self, facts: EngineFacts, outbox: Outbox, holdings: Holdings
    ) -> tuple[Sequences | Relays, StartSpeed]:
        """Prove that the engine generates; return how requests run on it, and its speed."""
        config, client, api = self._config, self._client, self._api
        if isinstance(api, OpenAiApi):
            await prove_text(client, api, config, facts, self._reports)
            return Relays(client, outbox, holdings, facts.block_size), StartSpeed()
        assert self._text is not None
        speed = await prove(client, api, config, facts, self._text, self._reports)
        work = Sequences(config, facts, self._text, client, api, outbox, holdings)
        return work, speed
