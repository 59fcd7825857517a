"""Keeps one engine alive: start it, report its death, clean up, start it again.

Owns what is done at each event of a `Lifecycle`. Must not know gateways, nor how a running engine
is judged (`engine_life.py`), nor which state follows (`lifecycle.py`).
"""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, final
from urllib.parse import urlsplit

import trio

from config import WorkerConfig
from housekeeping.process_files import make_scratch
from protocol.control_messages import (
    MAX_SHOWN_TROUBLES,
    ProbeQuestion,
    ProbeReport,
    WorkerStatus,
)
from protocol.errors import ConfigError
from protocol.messages import INVARIANT
from workers.ipc import AnswerProbe
from workers.supervisor.between_engines import BetweenEngines
from workers.supervisor.death_reports import DeathReports
from workers.supervisor.diagnosis import (
    DOWNLOAD_PHASE,
    DeathEvidence,
    count_oom_kills,
    diagnose,
)
from workers.supervisor.engine_life import EngineLife
from workers.supervisor.engine_process import NATIVE_ENGINE
from workers.supervisor.frame_relay import FrameRelay
from workers.supervisor.group import Group, Run
from workers.supervisor.hold import WorkerHold
from workers.supervisor.host_cache import HostCache, may_keep
from workers.supervisor.identity import take_changes
from workers.supervisor.lifecycle import (
    DRAINS,
    OVER,
    SERVING,
    SHOWN,
    EngineState,
    Lifecycle,
    LifeEvent,
)
from workers.supervisor.log import WorkerLog
from workers.supervisor.port_holder import port_holder
from workers.supervisor.restart_policy import RestartPolicy
from workers.supervisor.seat_states import SeatEvent
from workers.supervisor.sleeper import Sleeper, TurnsOf
from workers.supervisor.start_journal import StartJournal
from workers.supervisor.stop_command import run_stop
from workers.supervisor.turn_taker import AGAIN_S
from workers.versions import resolved

_NOT_FOUND: Final = 127
_NOT_STARTED: Final = 126


@final
class EngineSupervisor:
    """Runs one engine after another. `run` lasts until cancelled. `lifecycle` has the state of the
    engine; only this class changes it.

    `command` starts an engine; the supervisor appends its own options. `arguments` are the words
    that started the worker, and `file` is its configuration file, for the record of starts. `cache`
    keeps prefixes beyond each engine.
    """

    _relay: FrameRelay
    _nursery: trio.Nursery  # both are set when `run` begins, before any request

    def __init__(
        self,
        config: WorkerConfig,
        log: WorkerLog,
        *,
        command: Sequence[str] = NATIVE_ENGINE,
        policy: RestartPolicy | None = None,
        group: Group | None = None,
        arguments: Sequence[str] = (),
        file: str = "",
        hold: WorkerHold | None = None,
        cache: HostCache | None = None,
        turns: TurnsOf | None = None,
    ) -> None:
        """`turns` makes the worker's seat at the table of its device, if it has one."""
        self._cache = cache
        self._config = self._next_config = config
        # The configuration of the running engine, with the version of its installation.
        self._started, self._version = config, ""
        begins_asleep = config.residency == "on-demand"
        self.lifecycle = Lifecycle(hold, policy, begins_asleep=begins_asleep)
        self.sleeper = (
            None if turns is None else Sleeper(turns(self.lifecycle), self.lifecycle, log)
        )
        self._probe: tuple[int, AnswerProbe] | None = None
        self._log = log
        self._command = command
        self._group = group
        self._waits_for = ""
        self._journal = StartJournal(arguments, log, file)
        self._between = BetweenEngines(config, log)
        self._life: EngineLife | None = None
        self._finishing = trio.CancelScope()
        self._wake = trio.Event()
        self._num_restarts = 0
        self._deaths = DeathReports(log, self.lifecycle.policy)

    def work_sent(self) -> None:
        """Note that a submission went to the engine, so that a step is due."""
        if self._life is not None:
            self._life.hang_watch.work_sent(trio.current_time())
        if self.sleeper is not None:
            self.sleeper.turns.used()

    def distrust(self, why: str) -> None:
        """End the engine, because it no longer answers a gateway's health probes; another
        engine follows.
        """
        if self._life is not None and self.lifecycle.state in SERVING:
            self._life.process.kill(f"no answers: {why}")

    async def run(self, relay: FrameRelay) -> None:
        """Start the engine, and start it again after each death."""
        self._relay = relay
        if self.sleeper is not None:
            self.sleeper.join(relay)
        if self.lifecycle.state is EngineState.ASLEEP:
            self._give_place_up()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            with suppress(ConfigError):  # the first start reports the error
                self._resolve()
                await run_stop(self._started.launch, self._log.info)
            await self._between.free_card()
            await self._between.prepare(self._config.prepare)
            await self._take_config()
            nursery.start_soon(self._between.sweep_and_measure)
            if self.sleeper is not None:
                nursery.start_soon(self.sleeper.run)
            while self.lifecycle.state is not EngineState.LEAVING:
                self._wake = trio.Event()
                if self.sleeper is not None and self.lifecycle.state is EngineState.ASLEEP:
                    await self.sleeper.wait_turn()
                    await self._take_config()
                if self._group is not None:
                    await self._group.wait_start(self._wait_for_group)
                    self._waits_for = ""
                await self._one_life()
                self._num_restarts += 1

    async def drain(self, deadline_s: float) -> None:
        """Wait until the engine has no sequence, at most `deadline_s`. Starts no other engine
        afterwards.
        """
        self.lifecycle.on(LifeEvent.LEAVE)
        if self._life is not None:
            await self._life.finish(deadline_s)

    async def stop(self) -> None:
        """End the engine, within three seconds."""
        self.lifecycle.on(LifeEvent.LEAVE)
        if self._life is not None:
            await self._life.leave()

    def begin_hold(self, drain_s: float) -> None:
        """Hold the engine: finish running sequences, for at most `drain_s`, and take no others from
        gateways. Raises `ConfigError` if the worker cannot be held.
        """
        if self._group is not None:
            raise ConfigError("it is a rank of a group, and groups are not moved between versions")
        if self.lifecycle.on(LifeEvent.HOLD) is EngineState.YIELDING:
            assert self._life is not None
            self._log.info(f"held for another version; draining for at most {drain_s:g} s")
            self._nursery.start_soon(self._yield_for_hold, self._life, drain_s)

    def end_hold(self) -> None:
        """End the hold. An engine that has stopped is started again, in the current version."""
        self.lifecycle.hold.end()
        before, state = self.lifecycle.state, self.lifecycle.on(LifeEvent.UNHOLD)
        self._finishing.cancel()
        if state is EngineState.READY and self._life is not None:
            self._life.accepted.set()
        self._relay.end_hold()
        if before is EngineState.STOPPED:
            self.lifecycle.policy.reset()
            self._give_place_up(is_wanted=True)
            self._start_again()

    def go_back(self) -> None:
        """End the hold after its lease has run out: the current version serves again."""
        if not self._has_other_version():
            self.end_hold()
            return
        self.lifecycle.hold.end()
        self._relay.end_hold(drops_engine=True)
        if self.lifecycle.state is not EngineState.LEAVING:
            self.restart(self._next_config, force=True)

    def ask(self, number: int, questions: Sequence[ProbeQuestion], *, has_leads: bool) -> None:
        """Put questions to the engine. Raises `ConfigError` unless it is ready and idle."""
        life, is_idle = self._life, self.lifecycle.state in (EngineState.READY, EngineState.HELD)
        if life is None or life.facts is None or not is_idle:
            raise ConfigError("its engine is not ready")
        request_id, now = os.urandom(16), trio.current_time()
        relay = life.facts.relay
        probe = AnswerProbe(
            request_id, self._config.serves, questions, now, relay, has_leads=has_leads
        )
        self._probe = number, probe
        life.ask(probe)

    def restart(self, config: WorkerConfig, *, force: bool) -> int:
        """Restart the engine with `config`, also after it was given up: after a drain, or at once
        if `force`.

        Returns the epoch of the new start. Raises `ConfigError` if a restart is impossible.
        """
        before = self.lifecycle.state
        # A trial of another version waits for the drain that its hold has begun.
        is_forced = force and not (self.lifecycle.hold.is_on and before in DRAINS)
        state = self.lifecycle.on(LifeEvent.RESTART_NOW if is_forced else LifeEvent.RESTART)
        self._next_config = config
        self.lifecycle.policy.reset()
        if before is EngineState.STOPPED:
            self._give_place_up()
            self._start_again()
        elif before is EngineState.ASLEEP:
            pass  # the next wake takes the configuration
        elif before is EngineState.DORMANT:
            assert self._life is not None
            assert self.sleeper is not None
            self._nursery.start_soon(self.sleeper.end, self._life)
        elif before is EngineState.WAITING or state in OVER:
            self._wake.set()
        elif self._life is None and before is EngineState.STARTING:
            # The start still reads the device, and begins again after that.
            self._relay.engine_restarts()
        elif before is not EngineState.REPLACING:
            assert self._life is not None
            if state is EngineState.DRAINING:
                self._nursery.start_soon(self._drain_and_replace, self._life)
            else:
                self._finishing.cancel()
                self._replace(self._life)
        # The epoch of the next start has begun, unless the engine of this one is not gone yet.
        return self._relay.epoch + (state is EngineState.DRAINING or state in OVER)

    def clear_cache(self) -> None:
        """Forget cached prefixes that no request uses; an engine that starts does so before it
        serves. Raises `ConfigError` for an engine that is not Herma's own.
        """
        config = self._config if self._life is None else self._started
        if config.engine != "native":
            raise ConfigError("its engine is not Herma's own: clear the cache of that engine")
        if self._life is not None:
            self._life.clear_cache()  # if this engine ends before, the next one finds no cache
        elif self._cache is not None:
            self._cache.clear()

    def retune(self, config: WorkerConfig) -> None:
        """Take `config`, which differs from that of the next engine only in keys that no engine
        reads; these hold for the present engine too.
        """
        is_next = self._next_config is not self._config  # a restart has been asked for
        self._config, _ = take_changes(self._config, config)
        self._next_config = config if is_next else self._config
        if self.sleeper is not None:
            self.sleeper.turns.retune(self._config)
        if self._life is not None:
            self._life.retune(self._config)

    def status(self, gateways: tuple[int, int], troubles: tuple[str, ...]) -> WorkerStatus:
        """The worker's status. `gateways` are the counts of welcomed and of dialled gateways;
        `troubles` follow those of this start.
        """
        life, now = self._life, trio.current_time()
        state = SHOWN[self.lifecycle.state]
        progress = life.progress if life is not None and state == "starting" else None
        facts = life.facts if life is not None else None
        launch = self._config.launch
        return WorkerStatus(
            name=self._config.name,
            pid=os.getpid(),
            serves=self._config.serves,
            model=self._config.model,
            state=state,
            epoch=self._relay.epoch,
            restarts=self._num_restarts,
            phase=progress.phase if progress is not None else "ranks" * bool(self._waits_for),
            fraction=progress.fraction if progress is not None else 0.0,
            detail=progress.detail if progress is not None else self._waits_for,
            engine_pid=life.process.pid if life is not None else None,
            uptime_s=now - life.ready_at if life is not None and life.ready_at else 0.0,
            device="" if facts is None else facts.device,
            drafting=life.drafting if life is not None else "",
            cache=life.cache if life is not None else "",
            is_invariant=facts is not None and INVARIANT in facts.capabilities,
            gateways=gateways,
            troubles=(*(life.troubles if life is not None else ()), *troubles)[:MAX_SHOWN_TROUBLES],
            fault=None if self._deaths.last is None else self._deaths.last.shown(now),
            is_held=self.lifecycle.hold.is_on,
            warnings=life.warnings if life is not None else (),
            probe=self._probe_report(),
            installation=(launch.installation if launch is not None else None) or "",
            base=(launch.base if launch is not None else None) or "",
            version=self._version,
            group=self._config.group or "",
            rank=self._config.rank,
            turn="" if self.sleeper is None else self.sleeper.turns.line(),
        )

    def _probe_report(self) -> ProbeReport | None:
        if self._probe is None:
            return None
        number, probe = self._probe
        return ProbeReport(number, probe.is_over, probe.failure, tuple(probe.answers))

    def _has_other_version(self) -> bool:
        """Whether the running engine is not of the current version."""
        try:
            return self._version != resolved(self._config, os.environ)[1]
        except ConfigError:
            return True

    def _resolve(self) -> None:
        """Resolve the version of the next engine. Raises `ConfigError` if it is missing."""
        wanted = self.lifecycle.hold.version or None
        self._started, self._version = resolved(self._config, os.environ, wanted)

    async def _yield_for_hold(self, life: EngineLife, drain_s: float) -> None:
        with trio.CancelScope() as self._finishing:
            await life.finish(drain_s)
        if self._life is life and self.lifecycle.state is EngineState.YIELDING:
            self.lifecycle.on(LifeEvent.YIELDED)

    async def _drain_and_replace(self, life: EngineLife) -> None:
        self._log.info(f"a restart is asked for; draining for at most {self._config.drain_s:g} s")
        with trio.CancelScope() as self._finishing:
            await life.finish(self._config.drain_s)
        if self._life is life and self.lifecycle.state is EngineState.DRAINING:
            self.lifecycle.on(LifeEvent.DRAINED)
            self._replace(life)

    def _replace(self, life: EngineLife) -> None:
        """End the engine; the next one starts at once, and its epoch begins now."""
        self._log.info("restarting the engine, as asked for")
        self._relay.engine_restarts()
        self._nursery.start_soon(life.leave)

    def _give_place_up(self, *, is_wanted: bool = False, again_s: float = 0.0) -> None:
        """Let a worker without a process wait for its next turn, if it takes turns: another worker
        may have its memory of the card. No request can wait for a held worker, so this method
        itself asks for the next turn of a held worker, as of one that `is_wanted`. The turn comes
        after `again_s`.
        """
        if self.sleeper is None or not self.sleeper.turns.is_on_demand:
            return
        if again_s:
            self.sleeper.turns.failed("", again_s)
        self.lifecycle.on(LifeEvent.SLEEP)
        if is_wanted or self.lifecycle.hold.is_on:
            self.sleeper.turns.wish("wake")

    def _start_again(self) -> None:
        """Start an engine behind one that was given up."""
        self._relay.engine_restarts()
        self._wake.set()

    def _wait_for_group(self, what: str) -> None:
        """Report what the group waits for. Waiting is no failure, however long it takes."""
        self._waits_for = what
        self._relay.engine_progress("ranks", 0.0, f"waits: {what}")

    def _run_of(self, life: EngineLife) -> Run:
        """The actions of the group on this engine."""
        return Run(life.process.kill, life.seems_alive, life.group_serves)

    def _tell_group(self, ending: DeathEvidence) -> None:
        """Report the end to the group at once: most engines wait for a dead rank without a
        bound.
        """
        if self._group is not None:
            self._group.ended(diagnose(ending).cause)

    async def _read_device(self) -> bool:
        """Read the device before the process of a start: others of it come and go. Returns whether
        the engine is still to start; a restart or an end that came meanwhile had no process to end.
        """
        if self.sleeper is not None:
            await self.sleeper.before_start()
        if self._config.residency == "on-demand":
            await self._between.measure()
        is_due = self.lifecycle.state is EngineState.STARTING
        if self.lifecycle.state is EngineState.REPLACING:  # the next start has its epoch already
            self.lifecycle.on(LifeEvent.RETRY)
            await self._pause(0.0, frozenset())
        return is_due

    async def _one_life(self) -> None:
        """Run one engine, from its spawn until the next one may start."""
        oom_kills = count_oom_kills()
        if self.lifecycle.on(LifeEvent.START) is EngineState.LEAVING:
            return
        life: EngineLife | None = None
        scratch: Path | None = None
        if not await self._read_device():
            return
        try:
            try:
                scratch = make_scratch(f"engine-{self._relay.epoch}")
                self._resolve()
                life = self._spawn(scratch)
            except (OSError, ConfigError) as error:
                is_missing = isinstance(error, FileNotFoundError | ConfigError)
                code = _NOT_FOUND if is_missing else _NOT_STARTED
                ending = DeathEvidence(exit_code=code, spawn_error=str(error))
                self._tell_group(ending)
                self.lifecycle.on(LifeEvent.EXITED)
            else:
                exit_code = await self._live(life)
                ending = life.ending(exit_code, count_oom_kills() - oom_kills)
        finally:
            with trio.CancelScope(shield=True):
                await self._between.clean_up(scratch)
                await run_stop(self._started.launch, self._log.info)
        self._life = None
        if self.sleeper is not None:
            self.sleeper.life = None
        if self._cache is not None:
            self._cache.engine_ended(
                lacked_memory=diagnose(ending).kind == "memory",
                was_clearing=life is not None and life.num_clears > 0,
                log=self._log,
            )
        own = frozenset(() if life is None else (life.process.pid,))
        match self.lifecycle.state:
            case EngineState.LEAVING:
                return
            case EngineState.REPLACING:  # the next start has its epoch already
                self.lifecycle.on(LifeEvent.RETRY)
                await self._pause(0.0, own)
            case EngineState.FALLING_ASLEEP:
                await self._sleeps(ending, own)
            case _:
                await self._after_death(ending, own)

    async def _sleeps(self, ending: DeathEvidence, own: frozenset[int]) -> None:
        """Take the end of a process that ended on purpose, or while it was asleep: nothing is
        lost with it.
        """
        assert self.sleeper is not None
        why = f"its engine died asleep ({diagnose(ending).cause}); its next wake starts another"
        # A process that was asked to end may have had to be killed: its memory is free in both
        # cases.
        is_wanted = self.sleeper.has_ended
        if ending.killed_for is not None:
            why = f"its engine did not fall asleep ({ending.killed_for}); its process has ended"
        await self._between.wait_drained(own)
        await self.sleeper.has_slept()
        self.lifecycle.on(LifeEvent.SLEPT)
        self._relay.engine_restarts()
        if not is_wanted:
            self.sleeper.turns.failed(why)
        await self._between.prepare(self._config.prepare)

    async def _after_death(self, ending: DeathEvidence, own: frozenset[int]) -> None:
        diagnosis = diagnose(ending)
        if diagnosis.kind == "port_taken" and (port := _port_of(self._config)) is not None:
            holder = await trio.to_thread.run_sync(port_holder, port)
            ending = replace(ending, port_holder=holder)
        is_told = self.lifecycle.state is EngineState.LINGERING
        delay_s = self.lifecycle.delay_after_death(
            trio.current_time(),
            is_permanent=diagnosis.is_permanent,
            is_outside=diagnosis.kind == "driver" or ending.phase == DOWNLOAD_PHASE,
            is_rank=self._config.rank > 0,
            is_attached=self._config.is_attached,
        )
        if delay_s is None and self._wake.is_set():
            delay_s = 0.0  # a restart that was requested meanwhile overrides giving up
        if delay_s is not None:
            self._deaths.report(ending, self._config, self._relay, is_told=is_told, next_s=delay_s)
            self.lifecycle.on(LifeEvent.RETRY)
            self._relay.engine_restarts()
            if delay_s >= AGAIN_S:
                self._give_place_up(again_s=delay_s)  # other workers get the device meanwhile
            await self._pause(delay_s, own)
        else:
            self._deaths.report(ending, self._config, self._relay, is_told=False, is_final=True)
            self.lifecycle.on(LifeEvent.GIVE_UP)
            await self._wake.wait()  # the epoch of the next start begins with the request
            await self._pause(0.0, own)

    async def _pause(self, delay_s: float, own: frozenset[int]) -> None:
        """Wait until the back-off is over and the memory of the dead engine is free."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._between.wait_drained, own)
            with trio.move_on_after(delay_s):
                await self._wake.wait()
        await self._between.prepare(self._config.prepare)
        await self._take_config()

    async def _take_config(self) -> None:
        """Use the configuration of a requested restart for the next engine."""
        while (config := self._next_config) is not self._config:
            is_elsewhere = (config.engine, config.device) != (
                self._config.engine,
                self._config.device,
            )
            self._config = config
            if self.sleeper is not None:
                is_other = self.sleeper.turns.reconfigure(config)
                if is_other and self.lifecycle.state is EngineState.WAITING:
                    self._give_place_up()  # the new engine may not fit beside the others
            if is_elsewhere:
                await self._between.move_to(config)

    def _spawn(self, scratch: Path) -> EngineLife:
        environ = {**os.environ, "TMPDIR": str(scratch)}
        # torch would put compiled code into the temporary directory, which is removed; the code is
        # worth keeping.
        cache = Path(tempfile.gettempdir()) / f"torchinductor_{os.geteuid()}"
        environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
        if self._cache is not None and not may_keep(self._started):
            self._cache.clear()
        life = EngineLife(
            self._started,
            self._relay,
            self._log,
            self._took,
            command=self._command,
            environ=environ,
            cache=self._cache if may_keep(self._started) else None,
        )
        if self._group is not None:
            life.on_progress = self._group.progress
        self._life = life
        if self.sleeper is not None:
            self.sleeper.life = life
        self._log.info_unless_shared(f"engine start {self._relay.epoch} (pid {life.process.pid})")
        return life

    async def _live(self, life: EngineLife) -> int:
        """Run the engine; return the exit code when the process has ended. A slow death is reported
        to gateways at once, even if a driver takes seconds to release the process.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_gpu, life)
                if self._group is not None:
                    self._group.began(self._run_of(life))
                nursery.start_soon(self._journal.follow, life, self._started)
                known_code = await life.run()
                nursery.cancel_scope.cancel()
            self._tell_group(life.ending(known_code, 0))
            event = LifeEvent.LINGERS if known_code is None else LifeEvent.EXITED
            if self.lifecycle.on(event) is EngineState.LINGERING:
                ending = life.ending(None, 0)
                self._deaths.report(ending, self._config, self._relay, is_told=False)
        finally:
            exit_code = await life.reap()
        return exit_code

    async def _watch_gpu(self, life: EngineLife) -> None:
        """Count use of the GPU as a sign of life until the engine is ready."""
        with life.starting:
            await self._between.watch_use(life.seems_alive)

    def _took(self, event: LifeEvent) -> None:
        """Take an event of the running engine: it has loaded its model, or has proven itself."""
        if event is LifeEvent.PROVEN and self.sleeper is not None:
            self.sleeper.turns.sits(SeatEvent.PROVEN)
        state = self.lifecycle.on(event)
        if event is not LifeEvent.PROVEN:
            return
        if self.sleeper is not None and self._life is not None:
            self._nursery.start_soon(self.sleeper.after_start, self._life)
        self.lifecycle.policy.ready(trio.current_time())
        if state is EngineState.READY and self._life is not None:
            self._life.accepted.set()
        if self._group is not None:
            self._group.ready()


def _port_of(config: WorkerConfig) -> int | None:
    """The port of the engine's URL, if it has one."""
    return None if config.url is None else urlsplit(config.url).port
