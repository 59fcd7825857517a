"""One engine from spawn to exit: the watch over its start, its health probe, the watch over its
steps.

Owns every judgement on a running engine. Frames of other links go to the relay. Must not know what
happens after the engine's death.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, assert_never, final

import msgspec
import trio

from config import WorkerConfig
from protocol import wire
from protocol.errors import ConfigError, WireError
from protocol.messages import EngineFacts, FromWorker, Load
from workers.ipc import (
    BROADCAST,
    FIRST_CONTROL_TAG,
    SUPERVISOR,
    AnswerProbe,
    ClearCache,
    Cleared,
    Drained,
    DrainEngine,
    EngineFailed,
    EngineReady,
    EngineStart,
    HealthProbe,
    Heartbeat,
    Shutdown,
    SleepEngine,
    Slept,
    StartProgress,
    ToEngine,
    WakeEngine,
    Woken,
    decode_from_engine,
    encode_control,
)
from workers.model_dir import NO_FILES, ModelFiles, read_model_files
from workers.supervisor.diagnosis import DeathEvidence
from workers.supervisor.engine_process import EngineProcess
from workers.supervisor.frame_relay import FrameRelay
from workers.supervisor.host_cache import HostCache
from workers.supervisor.lifecycle import LifeEvent
from workers.supervisor.log import WorkerLog
from workers.supervisor.progress_watch import HangWatch, StartWatch

TICK_S: Final = 0.1
_LOAD: Final = wire.tag_of(Load)
_ASKED_S: Final = 2.0
_TERMINATED_S: Final = 1.0
_SLOW_DEATH_S: Final = 10.0
_ENDED: Final = "its process has ended"


@final
class EngineLife:
    """One engine process. `failure` is the engine's report of its end, `loaded` its report that the
    model is loaded. When the health probe passes, `facts` is set, the scope `starting` is cancelled
    and `proven` is set; when the engine serves gateways, `accepted` is set. `num_clears` counts the
    wishes to clear its cache that it has not answered. `on_event` receives `LOADED` and `PROVEN`,
    `on_load` the engine's reports of load.
    """

    def __init__(
        self,
        config: WorkerConfig,
        relay: FrameRelay,
        log: WorkerLog,
        on_event: Callable[[LifeEvent], None],
        *,
        command: Sequence[str],
        environ: Mapping[str, str],
        cache: HostCache | None = None,
    ) -> None:
        """Spawn the process, which gets the region of `cache`. Raises `OSError`."""
        now = trio.current_time()
        self.epoch = relay.epoch
        self.failure: EngineFailed | None = None
        self.ready_at: float | None = None
        self.facts: EngineFacts | None = None
        self.loaded: EngineReady | None = None
        self.proven = trio.Event()
        self.accepted = trio.Event()
        self.warnings: tuple[str, ...] = ()
        self.on_load: Callable[[Load], None] | None = None
        self.progress = StartProgress("start", 0.0)
        self.drafting = self.cache = ""
        self.num_clears = 0
        self.on_progress: Callable[[str, float, str], None] = _ignore
        self.starting = trio.CancelScope()
        self.drained = trio.Event()
        self.ended = trio.Event()
        self._moved = trio.Event()
        self._how: Slept | Woken = Slept(_ENDED)
        self.hang_watch = HangWatch(config.stall_s, now)
        self._start_watch = StartWatch(config.stall_s, now)
        self._config = config
        self._relay = relay
        self._log = log
        self._on_event = on_event
        self._health_probe: HealthProbe | None = None
        self._answer_probe: AnswerProbe | None = None
        self._files: ModelFiles | None = None
        self._nursery: trio.Nursery | None = None
        own = {} if cache is None else cache.variable()
        self.process = EngineProcess(
            config.name,
            self._take,
            log.engine_line,
            command=command,
            environ={**environ, **own},
            fds=() if cache is None else (cache.fd,),
        )

    def __repr__(self) -> str:
        return f"<EngineLife epoch {self.epoch} pid {self.process.pid} {self.progress.phase}>"

    @property
    def is_ready(self) -> bool:
        """Whether the engine has generated the health probe's tokens."""
        return self.ready_at is not None

    @property
    def troubles(self) -> tuple[str, ...]:
        """Troubles of a start that continues: the engine's finding, then the warnings."""
        found = self.loaded.trouble if self.loaded is not None else ""
        return (found, *self.warnings) if found else self.warnings

    @property
    def model(self) -> str:
        """The model of the configuration that the engine was started with."""
        return self._config.model

    def send_control(self, message: ToEngine) -> None:
        """Send a control message to the engine."""
        self.process.send(SUPERVISOR, encode_control(message))

    async def run(self) -> int | None:
        """Run the engine to its end. Returns the exit code as in a shell, None if the process is
        slow to die.
        """
        self._relay.engine_starts(self.process)
        self._relay.engine_progress(self.progress.phase, self.progress.fraction, "")
        self.send_control(EngineStart(msgspec.json.encode(self._config), self.epoch))
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._watch)
                exit_code = await self.process.run()
                nursery.cancel_scope.cancel()
        finally:
            self.drained.set()  # a dead engine has nothing left to finish
            self._how = Slept(_ENDED)
            self._moved.set()
            self.ended.set()
        return exit_code

    async def reap(self) -> int:
        """Wait until the process has ended, without a bound. Returns its exit code."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._warn_of_slow_death)
            exit_code = await self.process.reap()
            nursery.cancel_scope.cancel()
        return exit_code

    async def _warn_of_slow_death(self) -> None:
        await trio.sleep(_SLOW_DEATH_S)
        self._log.warning(
            f"the killed engine (pid {self.process.pid}) has not died for {_SLOW_DEATH_S:g} s: it "
            "hangs in the kernel, mostly in a GPU's driver; waiting, for it holds its memory"
        )

    def clear_cache(self) -> None:
        """Ask the engine to forget cached prefixes."""
        self.num_clears += 1
        self.send_control(ClearCache())

    async def finish(self, deadline_s: float) -> None:
        """Wait until the engine has no sequence, for at most `deadline_s`."""
        if not self.is_ready or self.ended.is_set():
            return
        if self.drained.is_set():  # if not set, another call waits for it too
            self.drained = trio.Event()
        self.send_control(DrainEngine())
        with trio.move_on_after(deadline_s):
            await self.drained.wait()

    async def move(self, message: SleepEngine | WakeEngine) -> Slept | Woken:
        """Let the engine's memory leave the device, or come back. Returns the engine's answer. An
        engine that does not answer is judged like one that does not step.
        """
        self._moved = trio.Event()
        if self.ended.is_set():
            return Slept(_ENDED)
        self.hang_watch.work_sent(trio.current_time())
        self.send_control(message)
        await self._moved.wait()
        return self._how

    def serve_again(self) -> None:
        """Tell the gateways about the engine, whose memory is back, in the current epoch."""
        assert self.facts is not None
        assert self._files is not None
        self.epoch = self._relay.epoch
        self.ready_at = trio.current_time()
        self._relay.engine_starts(self.process)
        self._relay.engine_ready(self.facts, self._files)

    def retune(self, config: WorkerConfig) -> None:
        """Use the `stall_s` of `config` from now on."""
        self._config = config
        self.hang_watch.stall_s = self._start_watch.stall_s = config.stall_s

    def seems_alive(self, detail: str) -> None:
        """Record a sign outside the engine that its start makes progress."""
        if not self.is_ready:
            self._progressed(StartProgress(self.progress.phase, self.progress.fraction, detail))

    def ask(self, probe: AnswerProbe) -> None:
        """Put the questions of `probe` to the engine, which must be ready."""
        self._answer_probe = probe
        self._ask_on(probe)

    def _take_answer(self, probe: AnswerProbe, message: FromWorker) -> None:
        if probe.receive(message, trio.current_time()):
            self._ask_on(probe)

    def _ask_on(self, probe: AnswerProbe) -> None:
        self.hang_watch.work_sent(trio.current_time())
        self.process.send(SUPERVISOR, wire.encode(probe.request))

    def group_serves(self) -> None:
        """The group's head answers, so this rank counts as ready."""
        if not self.is_ready:
            self.ready_at = trio.current_time()
            self.starting.cancel()
            self._on_event(LifeEvent.PROVEN)
            self._log.info(f"ready: rank {self._config.rank} of group {self._config.group}")

    async def leave(self) -> None:
        """Ask the engine to end; then send SIGTERM to its process group; then kill it."""
        if self.ended.is_set():
            return
        self.send_control(Shutdown())
        with trio.move_on_after(_ASKED_S):
            await self.ended.wait()
            return
        self.process.terminate()
        with trio.move_on_after(_TERMINATED_S):
            await self.ended.wait()
            return
        self.process.kill("it did not leave when asked")
        await self.ended.wait()

    def ending(self, exit_code: int | None, oom_kills: int) -> DeathEvidence:
        """The evidence of the engine's end."""
        return DeathEvidence(
            killed_for=self.process.killed_for,
            reported=self.failure.cause if self.failure is not None else None,
            is_config=self.failure is not None and self.failure.is_config,
            phase=self.progress.phase,
            exit_code=exit_code,
            last_lines=tuple(self.process.last_lines),
            oom_kills=oom_kills,
        )

    async def _watch(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            now = trio.current_time()
            watch = self.hang_watch if self.is_ready else self._start_watch
            if self.process.is_paused:
                watch.not_read(now)
            # A rank without an API is judged by its head's answers.
            if (verdict := watch.verdict(now)) is not None and not self._config.rank:
                self.process.kill(verdict)

    def _take(self, frames: list[tuple[int, bytes]]) -> None:
        """Pass frames to the relay, together and in order. Drops the frames of a killed engine."""
        waiting: list[tuple[int, bytes]] = []
        for frame in frames:
            link, payload = frame
            if link != SUPERVISOR:
                waiting.append(frame)
                if link == BROADCAST and self.on_load is not None:
                    self._look_at(payload, self.on_load)
                continue
            self._relay.from_engine(waiting)
            waiting = []
            self._take_own(payload)
            if self.process.killed_for is not None:
                return
        self._relay.from_engine(waiting)

    def _look_at(self, payload: bytes, on_load: Callable[[Load], None]) -> None:
        """Look at a frame of the engine. A report of load is read too, at most ten a second."""
        if wire.peek_tag(payload) == _LOAD:
            try:
                message = wire.decode_from_worker(payload)
            except WireError as error:
                self.process.kill(f"the engine's stream is broken: {error}")
            else:
                assert isinstance(message, Load)
                on_load(message)

    def report_speed_loss(
        self, figures: tuple[str, ...], warnings: tuple[str, ...], num_changes: int
    ) -> None:
        """Report `figures` that are over 10 % slower than at the good starts; none if `figures` is
        empty.
        """
        self.warnings = warnings
        self._relay.engine_slower(figures, num_changes)

    def _take_own(self, payload: bytes) -> None:
        """Handle a frame for the supervisor itself."""
        try:
            if (wire.peek_tag(payload) or 0) >= FIRST_CONTROL_TAG:
                self._control(payload)
            elif self._health_probe is not None and not self.is_ready:
                self._health_probe.receive(wire.decode_from_worker(payload))
                self._judge_health_probe(self._health_probe)
            elif self._answer_probe is not None and not self._answer_probe.is_over:
                self._take_answer(self._answer_probe, wire.decode_from_worker(payload))
        except WireError as error:
            self.process.kill(f"the engine's stream is broken: {error}")

    def _control(self, payload: bytes) -> None:
        match message := decode_from_engine(payload):
            case Heartbeat():
                self.hang_watch.heartbeat(message, trio.current_time())
                self.drafting, self.cache = message.drafting, message.cache
            case StartProgress():
                self._progressed(message)
            case EngineReady():
                if self._files is None and self._nursery is not None:
                    self._nursery.start_soon(self._prove, message)
            case EngineFailed():
                self.failure = message
            case Drained():
                self.drained.set()
            case Cleared(count=count):
                self.num_clears -= count
            case Slept() | Woken():
                self._how = message
                self._moved.set()
            case _:
                assert_never(message)

    def _progressed(self, progress: StartProgress) -> None:
        self.progress = progress
        phase, fraction, detail = progress.phase, progress.fraction, progress.detail
        self._start_watch.progress(phase, fraction, detail, trio.current_time())
        self._relay.engine_progress(phase, fraction, detail)
        self.on_progress(phase, fraction, detail)

    async def _prove(self, ready: EngineReady) -> None:
        """Read the model's text files, then ask for the health probe's tokens."""
        try:
            self._files = (
                await trio.to_thread.run_sync(read_model_files, Path(ready.model_dir))
                if ready.facts.relay is None
                else NO_FILES
            )
        except ConfigError as error:
            self.process.kill(str(error))
            return
        self.loaded = ready
        self._on_event(LifeEvent.LOADED)
        # The digest covers the bytes that gateways receive, for every kind of engine.
        self.facts = msgspec.structs.replace(ready.facts, files_digest=self._files.digest)
        self._progressed(StartProgress("health probe", 0.0))
        relay = self.facts.relay
        self._health_probe = HealthProbe(os.urandom(16), self._config.serves, relay)
        self.process.send(SUPERVISOR, wire.encode(self._health_probe.request))

    def _judge_health_probe(self, health_probe: HealthProbe) -> None:
        if health_probe.failure is not None:
            self.process.kill(health_probe.failure)
        elif health_probe.answered and self.facts is not None and self._files is not None:
            now = trio.current_time()
            self.ready_at = now
            self.starting.cancel()
            self.proven.set()
            # The start watch has judged until here; the hang watch begins now.
            self.hang_watch = HangWatch(self._config.stall_s, now)
            self._on_event(LifeEvent.PROVEN)
            self._log.info_unless_shared(
                f"ready: serves {self._config.serves} ({self.facts.kind} engine)"
            )
            self._relay.engine_ready(self.facts, self._files)


def _ignore(_phase: str, _fraction: float, _detail: str) -> None:
    """Do nothing: the report of progress of a worker without a group."""
