"""Keeps one engine alive: start, watch, prove, report its death, start again.

Owns the order of an engine's lives and every judgement on it (watches, restart policy, canary).
Frames of other links go to the relay. Must not know gateways.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never, final

import msgspec
import trio

from config import WorkerConfig
from protocol import wire
from protocol.errors import ConfigError, WireError
from protocol.messages import EngineFacts
from workers.actors.engine_process import EngineProcess
from workers.actors.log import Log
from workers.actors.model_files import ModelFiles, read_model_files
from workers.actors.relay import Relay
from workers.core.canary import Canary
from workers.core.control import (
    FIRST_CONTROL_TAG,
    Beat,
    Drained,
    DrainEngine,
    EngineFailed,
    EngineReady,
    EngineStart,
    Shutdown,
    StartProgress,
    decode_from_engine,
    encode_control,
)
from workers.core.fault import fault_cause, last_log
from workers.core.framing import SUPERVISOR
from workers.core.restart import MAX_FAILED_STARTS, RestartPolicy
from workers.core.watch import HangWatch, StartWatch

TICK_S: Final = 0.1
_SHUTDOWN_S: Final = 2.0
_NOT_FOUND: Final = 127
_NOT_STARTED: Final = 126


@final
class EngineKeeper:
    """One engine after another. `run` lasts until cancelled."""

    def __init__(self, config: WorkerConfig, log: Log) -> None:
        self._config = config
        self._log = log
        self._policy = RestartPolicy()
        self._relay: Relay | None = None
        self._life: _Life | None = None
        self._drained = trio.Event()
        self._is_leaving = False

    def work_sent(self) -> None:
        """A submission went to the engine: it owes a step."""
        if self._life is not None:
            self._life.hang_watch.work_sent(trio.current_time())

    async def run(self, relay: Relay) -> None:
        """Start engines until one stays, and again when it dies."""
        self._relay = relay
        while True:
            exit_code = await self._live(relay)
            if self._is_leaving:
                return
            delay_s = self._policy.exited(trio.current_time())
            self._tell_death(relay, exit_code, gives_up=delay_s is None)
            if delay_s is None:
                relay.engine_stops()
                await trio.sleep_forever()
            else:
                relay.engine_restarts()
                await trio.sleep(delay_s)

    async def drain(self, deadline_s: float) -> None:
        """Wait until the engine has no sequence left, for at most `deadline_s`."""
        if self._life is None or not self._life.is_ready:
            return
        self._life.tell(DrainEngine())
        with trio.move_on_after(deadline_s):
            await self._drained.wait()

    async def stop(self) -> None:
        """Ask the engine to leave, wait two seconds, kill it."""
        self._is_leaving = True
        life = self._life
        if life is None:
            return
        life.tell(Shutdown())
        with trio.move_on_after(_SHUTDOWN_S):
            await life.ended.wait()
            return
        life.process.kill("it did not leave when asked")
        await life.ended.wait()

    async def _live(self, relay: Relay) -> int | None:
        """One life; the exit code, None if the process could not be spawned."""
        self._drained = trio.Event()
        try:
            life = _Life(self._config, relay, self._log, self._ready, self._drained.set)
        except OSError as error:
            self._log.say(f"cannot start the engine: {error}")
            self._life = None
            return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED
        self._life = life
        self._log.say_alone(f"engine start {relay.epoch} (pid {life.process.pid})")
        try:
            return await life.run()
        finally:
            self._drained.set()  # a dead engine has nothing left to finish

    def _ready(self) -> None:
        self._policy.ready(trio.current_time())

    def _tell_death(self, relay: Relay, exit_code: int | None, *, gives_up: bool) -> None:
        life, self._life = self._life, None
        cause = fault_cause(
            killed_for=life.process.killed_for if life is not None else None,
            told=life.told if life is not None else None,
            exit_code=exit_code,
            gives_up=gives_up,
        )
        if self._policy.failed_starts and not gives_up:
            cause += f" (failed start {self._policy.failed_starts} of {MAX_FAILED_STARTS})"
        self._log.say_alone(f"engine start {relay.epoch} is gone: {cause}")
        # Whoever reads the gateway's log beside ours has seen the engine's last lines.
        is_seen = self._log.beside_gateway
        lines = () if life is None or is_seen else last_log(life.process.last_lines)
        relay.engine_gone(cause, exit_code, lines, is_final=gives_up)


@final
class _Life:
    """From spawn to exit of one engine process."""

    def __init__(
        self,
        config: WorkerConfig,
        relay: Relay,
        log: Log,
        on_ready: Callable[[], None],
        on_drained: Callable[[], None],
    ) -> None:
        """Spawn. Raises `OSError`."""
        now = trio.current_time()
        self.told: str | None = None
        self.is_ready = False
        self.ended = trio.Event()
        self.hang_watch = HangWatch(config.stall_s, now)
        self._start_watch = StartWatch(config.stall_s, now)
        self._config = config
        self._relay = relay
        self._log = log
        self._on_ready = on_ready
        self._on_drained = on_drained
        self._canary: Canary | None = None
        self._facts: EngineFacts | None = None
        self._files: ModelFiles | None = None
        self._nursery: trio.Nursery | None = None
        self.process = EngineProcess(config.name, self._take, log.engine_line)

    def tell(self, message: DrainEngine | EngineStart | Shutdown) -> None:
        """Say something to the engine itself."""
        self.process.send(SUPERVISOR, encode_control(message))

    async def run(self) -> int:
        """The exit code as of a shell."""
        self._relay.engine_starts(self.process.send)
        self.tell(EngineStart(msgspec.json.encode(self._config), self._relay.epoch))
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._watch)
                exit_code = await self.process.run()
                nursery.cancel_scope.cancel()
        finally:
            self.ended.set()
        return exit_code

    async def _watch(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            now = trio.current_time()
            watch = self.hang_watch if self.is_ready else self._start_watch
            if (verdict := watch.verdict(now)) is not None:
                self.process.kill(verdict)

    def _take(self, link: int, payload: bytes) -> None:
        if link != SUPERVISOR:
            self._relay.from_engine(link, payload)
            return
        try:
            if (wire.peek_tag(payload) or 0) >= FIRST_CONTROL_TAG:
                self._control(payload)
            elif self._canary is not None and not self.is_ready:
                self._canary.heard(wire.decode_from_worker(payload))
                self._judge_canary(self._canary)
        except WireError as error:
            self.process.kill(f"the engine's stream is broken: {error}")

    def _control(self, payload: bytes) -> None:
        now = trio.current_time()
        match message := decode_from_engine(payload):
            case Beat():
                self.hang_watch.beat(message, now)
            case StartProgress(phase=phase, fraction=fraction, detail=detail):
                self._start_watch.progress(phase, fraction, detail, now)
                self._relay.engine_progress(phase, fraction, detail)
            case EngineReady():
                assert self._nursery is not None
                self._nursery.start_soon(self._prove, message)
            case EngineFailed(cause=cause):
                self.told = cause
            case Drained():
                self._on_drained()
            case _:
                assert_never(message)

    async def _prove(self, ready: EngineReady) -> None:
        """Read the text files, then ask for the canary's tokens."""
        try:
            self._files = await read_model_files(Path(ready.model_dir))
        except ConfigError as error:
            self.process.kill(str(error))
            return
        # One definition of the digest, whatever engine it is: of the bytes that gateways get.
        self._facts = msgspec.structs.replace(ready.facts, files_digest=self._files.digest)
        self._start_watch.progress("canary", 0.0, "", trio.current_time())
        self._relay.engine_progress("canary", 0.0, "")
        self._canary = Canary(os.urandom(16), self._config.serves)
        self.process.send(SUPERVISOR, wire.encode(self._canary.submit))

    def _judge_canary(self, canary: Canary) -> None:
        if canary.failure is not None:
            self.process.kill(canary.failure)
        elif canary.answered and self._facts is not None and self._files is not None:
            self.is_ready = True
            # Its patience begins now: until here the start watch judged.
            self.hang_watch = HangWatch(self._config.stall_s, trio.current_time())
            self._on_ready()
            self._log.say_alone(f"ready: serves {self._config.serves} ({self._facts.kind} engine)")
            self._relay.engine_ready(self._facts, self._files)
