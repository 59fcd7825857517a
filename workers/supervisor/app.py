"""The worker process: a light supervisor of one engine, connected to every gateway.

Owns the composition (relay, links, engine supervisor), the signals and the order of shutdown. Only
the engine process imports torch.
"""

import gc
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, final

import msgspec
import trio
from setproctitle import setproctitle

from config import WorkerConfig, state_dir
from housekeeping.audit import FILE_NAME, Act, AuditFile
from housekeeping.log_lines import log_style
from housekeeping.own_code import own_entry
from housekeeping.process_files import lasting
from housekeeping.service_manager import ServiceManager
from housekeeping.signals import graceful_stop, hangups, outlive_hangups
from protocol.control_messages import (
    WORKER_SOCKET,
    Answer,
    Ask,
    AskClear,
    AskHold,
    AskOverview,
    AskProbe,
    AskReload,
    AskReplace,
    AskRequest,
    AskRestart,
    AskServe,
    AskSleep,
    AskStatus,
    AskWake,
    Done,
    Reloaded,
)
from protocol.errors import ConfigError
from protocol.ids import ID_BYTES, WorkerId
from protocol.messages import REPLACED, Bye, Wanted
from protocol.transport import ControlSocket, CurveClient, load_curve_client
from protocol.version import VERSION
from workers.model_dir import check_dirs
from workers.supervisor.card_memory import CardMemory
from workers.supervisor.engine_process import NATIVE_ENGINE
from workers.supervisor.engine_supervisor import EngineSupervisor
from workers.supervisor.frame_relay import FrameRelay
from workers.supervisor.gateway_link import GatewayLink
from workers.supervisor.group import open_group
from workers.supervisor.hold import WorkerHold
from workers.supervisor.host_cache import HostCache
from workers.supervisor.identity import changed_keys, take_changes, worker_identity
from workers.supervisor.lifecycle import Lifecycle
from workers.supervisor.log import WorkerLog
from workers.supervisor.sleeper import TurnsOf
from workers.supervisor.successor import HeldStart, Successor, successor_of
from workers.supervisor.turn_taker import TurnTaker
from workers.turns import record_path, records_dir
from workers.versions import launch_problems

MAX_GATEWAYS: Final = 64

_GC_THRESHOLDS: Final = (10_000, 10, 20)
"""Frames make few reference cycles; Python's default of 700 allocations is reached in a few steps.
"""


@final
class WorkerApp:
    """One supervisor. `run` returns when a drain is over. `reread` reads the configuration file
    again; it blocks, and raises `ConfigError`. `file` is the absolute path of that file.
    """

    _nursery: trio.Nursery  # set when `run` begins

    def __init__(
        self,
        config: WorkerConfig,
        log: WorkerLog,
        engine_command: Sequence[str],
        reread: Callable[[], WorkerConfig],
        arguments: Sequence[str] = (),
        file: str = "",
    ) -> None:
        """Raises `ConfigError` for bad keys."""
        self._file = file
        self._config = config
        self._reread = reread
        self._manager = ServiceManager.take(os.environ)
        self._log = log
        if config.host_bytes:
            size = f"{max(1, config.host_bytes // 2**20)}MiB"
            log.warning(f'host_bytes is an older name: write cache = {{ host = "{size}" }} instead')
        self._audit = AuditFile(_audit_path(), f"worker {config.name}", log.warning, time.time)
        self._keys = _curve_keys(config)
        self._identity = WorkerId(os.urandom(ID_BYTES))
        self._links: dict[str, GatewayLink] = {}
        # A restart and a reload read the file and change the configuration one after another: one
        # that had read the file before would bring back what the other has replaced.
        self._changing = trio.Lock()
        self._drain_s = config.drain_s
        self._drain_wanted = trio.Event()
        self._group = open_group(config, log)
        self._held_start = HeldStart.take(os.environ)
        lease_s = None if self._held_start is None else self._held_start.lease_s
        self._cache = HostCache.take(os.environ)
        self._hold = WorkerHold(trio.current_time(), lease_s)
        self._lease = trio.CancelScope()
        self.successor: Successor | None = None
        self._engine = EngineSupervisor(
            config,
            log,
            command=engine_command,
            group=self._group,
            arguments=arguments,
            file=file,
            hold=self._hold,
            cache=self._cache,
            turns=self._turns_of(config),
        )
        self._relay = FrameRelay(
            worker_identity(config, VERSION),
            log,
            self._engine.lifecycle,
            on_work=self._engine.work_sent,
            on_drain=lambda deadline_s: self.drain(deadline_s, "a gateway"),
            on_distrust=self._engine.distrust,
            on_siblings=self._dial_siblings,
            on_demand=self._demanded,
        )

    def _turns_of(self, config: WorkerConfig) -> TurnsOf | None:
        """The seat of a worker whose model is resident on demand, or that holds memory of a card
        which others may share. Memory of an engine that others have started does not count as the
        worker's.
        """
        memory = CardMemory(config, os.environ)
        is_on_demand = config.residency == "on-demand"
        is_seen = memory.is_card and memory.can_read and not config.is_attached
        if config.rank or not (is_on_demand or is_seen):
            return None
        file = lasting(self._file)
        try:
            record = record_path(records_dir(os.environ), config.name, file)
        except ConfigError:
            record = None

        def seat(lifecycle: Lifecycle) -> TurnTaker:
            return TurnTaker(config, lifecycle, memory, self._log, record, file)

        return seat

    def _demanded(self, link: int, wanted: Wanted | None) -> None:
        if (sleeper := self._engine.sleeper) is None:
            return
        if wanted is None:
            sleeper.turns.gone(link)
        else:
            sleeper.turns.wanted(link, wanted)

    def drain(self, deadline_s: float, asker: str) -> None:
        """Finish running sequences, for at most `deadline_s`, then end. The audit file records
        `asker`.
        """
        if not self._drain_wanted.is_set():
            self._audit.note(Act("drain", asker, f"begun, at most {deadline_s:g} s"))
            self._manager.stopping()
            self._drain_s = max(0.0, deadline_s)
            self._drain_wanted.set()

    def dial(self) -> None:
        """Start dialling every gateway. Raises `ConfigError` for a bad address."""
        # A rank without an API speaks to its head alone.
        for link in self._open_links(self._config.gateways if self._config.rank == 0 else ()):
            self._links[link.address] = link

    async def run(self) -> None:
        """Serve until drained."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for link in self._links.values():
                nursery.start_soon(link.run)
            if self._group is not None:
                nursery.start_soon(self._group.run)
            nursery.start_soon(self._engine.run, self._relay)
            if (control := self._open_control()) is not None:
                nursery.start_soon(control.run)
            nursery.start_soon(self._reload_at_signals)
            if self._hold.is_on:
                nursery.start_soon(self._watch_hold)
            nursery.start_soon(self._manager.keep_alive, self._status_line)
            self._manager.ready("starting")
            await self._drain_wanted.wait()
            await self._leave()
            nursery.cancel_scope.cancel()

    def _status_line(self) -> str:
        status = self._engine.status((0, 0), ())
        return f"{status.state} {status.phase} {status.detail}".strip()

    @property
    def _num_welcomed(self) -> int:
        """The number of gateways that have accepted this worker."""
        return sum(link.number is not None for link in self._links.values())

    def _open_control(self) -> ControlSocket | None:
        """Open the control socket. Without it the worker serves, but local commands do not reach
        it.
        """
        try:
            return ControlSocket(WORKER_SOCKET, self._answer, self._audit.note)
        except ConfigError as error:
            self._log.warning(f"`herma worker status` will not find this worker: {error}")
            return None

    async def _answer(self, ask: Ask) -> Answer:
        match ask:
            case AskStatus():
                troubles = tuple(
                    f"gateway {link.address}: {link.trouble}"
                    for link in self._links.values()
                    if link.number is None and link.trouble
                )
                status = self._engine.status((self._num_welcomed, len(self._links)), troubles)
                return msgspec.structs.replace(
                    status, entry=_entry(), build=VERSION, config=self._file
                )
            case AskRestart():
                return await self._restart(ask)
            case AskReload():
                return await self._reload()
            case AskClear():
                self._engine.clear_cache()
                return Done(self._relay.epoch)
            case AskHold() | AskProbe() | AskServe() | AskReplace():
                return self._answer_trial(ask)
            case AskSleep() | AskWake():
                if (sleeper := self._engine.sleeper) is None:
                    raise ConfigError('it takes no turns: its model has no residency = "on-demand"')
                sleeper.turns.wish("sleep" if isinstance(ask, AskSleep) else "wake")
                return Done(self._relay.epoch)
            case AskOverview() | AskRequest():
                raise ConfigError("this is a worker, not a gateway")

    def _answer_trial(self, ask: AskHold | AskProbe | AskServe | AskReplace) -> Done:
        """Carry out a request about a trial of another version. Raises `ConfigError`."""
        now = trio.current_time()
        match ask:
            case AskHold(drain_s=drain_s, lease_s=lease_s):
                if not self._hold.is_on:
                    self._engine.begin_hold(drain_s)
                    self._nursery.start_soon(self._watch_hold)
                self._hold.begin(now, lease_s)
            case AskProbe(number=number, questions=questions, has_leads=has_leads):
                self._hold.check("be probed")
                self._hold.renew(now)
                self._engine.ask(number, questions, has_leads=has_leads)
            case AskServe():
                self._hold.check("be released")
                self._held_start = None
                self._engine.end_hold()
            case AskReplace(entry=entry, lease_s=lease_s):
                self._hold.check("be replaced")
                self._become(successor_of(entry, self._environ, lease_s))
        self._lease.deadline = self._hold.until
        return Done(self._relay.epoch)

    @property
    def _environ(self) -> dict[str, str]:
        return {**os.environ, **self._manager.environ}

    def _become(self, successor: Successor) -> None:
        """Shut down in order, then run another program in this process, which takes the region of
        prefixes over.
        """
        if self._cache is not None:
            self._cache.hand_over()
            successor.environ.update(self._cache.variable())
        self._log.info(f"this process becomes {successor.argv[0]}")
        self.successor = successor
        self._drain_s = 0.0
        self._drain_wanted.set()

    async def _watch_hold(self) -> None:
        """Return to the version from before if the lease is not renewed."""
        while self._hold.is_on:
            with trio.CancelScope(deadline=self._hold.until) as self._lease:
                await trio.sleep_forever()
            if self._drain_wanted.is_set():
                return
            if not self._hold.is_over(trio.current_time()):
                continue
            self._log.warning("the trial of another version is over: nobody has accepted it")
            if self._held_start is None:
                self._engine.go_back()
                return
            try:
                self._become(successor_of(self._held_start.back, self._environ))
            except ConfigError as error:
                self._log.warning(f"the version from before is gone, so this one serves: {error}")
                self._engine.end_hold()
            return

    async def _restart(self, ask: AskRestart) -> Done:
        """Restart the engine with the current configuration file. Raises `ConfigError`, and changes
        nothing, if that is impossible.
        """
        async with self._changing:
            return await self._restart_alone(ask)

    async def _restart_alone(self, ask: AskRestart) -> Done:
        if ask.version:
            self._hold.check("start a version")
        try:
            config = await trio.to_thread.run_sync(self._reread, abandon_on_cancel=True)
            changed = changed_keys(self._config, config)
            check = partial(_check_files, config, self._environ, ask.version)
            await trio.to_thread.run_sync(check, abandon_on_cancel=True)
        except ConfigError as error:
            raise ConfigError(f"not restarted: {error}") from error
        if self._hold.is_on:
            self._hold.renew(trio.current_time())
            self._hold.version = ask.version
        epoch = self._engine.restart(config, force=ask.force)
        self._config = config
        self._relay.reconfigured(worker_identity(config, VERSION))
        if changed:
            self._log.info(
                f"the next engine has another {', '.join(changed)}, as the file says now"
            )
        return Done(epoch, changed)

    async def _reload(self) -> Reloaded:
        """Apply the changes that need no restart. Raises `ConfigError`, and changes nothing, for an
        invalid file.
        """
        async with self._changing:
            return await self._reload_alone()

    async def _reload_alone(self) -> Reloaded:
        new = await trio.to_thread.run_sync(self._reread, abandon_on_cancel=True)
        config, reloaded = take_changes(self._config, new)
        added = config.gateways[len(self._config.gateways) :] if config.rank == 0 else ()
        links = self._open_links(one for one in added if one not in self._links)
        self._config = config
        self._engine.retune(config)
        self._relay.reconfigured(worker_identity(config, VERSION))
        for link in links:
            self._start_link(link)
        for what in reloaded.taken:
            self._log.info(f"{what} is taken from the file")
        for what in reloaded.kept:
            self._log.info(f"the file has another value, which needs more than a reload: {what}")
        return reloaded

    async def _reload_at_signals(self) -> None:
        async for _ in hangups():
            try:
                result = (await self._reload()).summary
            except ConfigError as error:
                self._log.warning(f"nothing is reloaded: {error}")
                result = f"refused: {error}"
            self._audit.note(Act("reload", "SIGHUP", result))

    async def _leave(self) -> None:
        if self._num_welcomed and self._drain_s:  # without a gateway no sequence runs
            self._log.info(f"draining for at most {self._drain_s:g} s")
        await self._engine.drain(self._drain_s)
        self._relay.broadcast(Bye("drained" if self.successor is None else REPLACED))
        for link in self._links.values():
            link.close()
        await self._engine.stop()

    def _open_links(self, addresses: Iterable[str]) -> list[GatewayLink]:
        """Open a link for each address. Raises `ConfigError` for the first bad address, with all
        links closed.
        """
        links: list[GatewayLink] = []
        try:
            for address in addresses:
                link = GatewayLink(
                    address,
                    self._identity,
                    self._relay,
                    self._log,
                    self._keys,
                    admits_others=self._config.insecure_local,
                )
                links.append(link)
        except ConfigError:
            for link in links:
                link.close()
            raise
        return links

    def _start_link(self, link: GatewayLink) -> None:
        """Start to run a link."""
        self._links[link.address] = link
        self._nursery.start_soon(link.run)

    def _dial_siblings(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            if address in self._links or len(self._links) >= MAX_GATEWAYS:
                continue
            try:
                (link,) = self._open_links((address,))
            except ConfigError as error:
                self._log.warning(f"a gateway names another that cannot be dialled: {error}")
            else:
                self._start_link(link)


def _check_files(config: WorkerConfig, environ: Mapping[str, str], version: str) -> None:
    """Check before a restart that the next engine can start. Raises `ConfigError`."""
    check_dirs(config)
    for problem in launch_problems(config, environ, version or None):
        raise ConfigError(problem)


async def run_worker(
    config: WorkerConfig,
    log: WorkerLog,
    engine_command: Sequence[str],
    reread: Callable[[], WorkerConfig],
    arguments: Sequence[str] = (),
    file: str = "",
) -> int | Successor:
    """Serve until SIGTERM or SIGINT and the drain after it; a second signal ends the worker at
    once.

    Returns the exit status (0 after a drain, 130 or 143 if it was cut short), or the program that
    this process becomes.
    """
    status = 0
    served = trio.CancelScope()

    def leave_now(number: int) -> None:
        nonlocal status
        status = 128 + number
        served.cancel()

    worker = WorkerApp(config, log, engine_command, reread, arguments, file)
    worker.dial()
    with (
        graceful_stop(lambda: worker.drain(config.drain_s, "SIGTERM or SIGINT"), leave_now),
        served,
    ):
        await worker.run()
    return status or worker.successor or 0


def serve(
    read: Callable[[], WorkerConfig],
    *,
    beside_gateway: bool = False,
    engine_command: Sequence[str] = NATIVE_ENGINE,
    arguments: Sequence[str] = (),
    file: str = "",
) -> int:
    """Run the worker on trio; return the exit status. Raises `ConfigError`.

    `read` reads the configuration, now and at each restart by hand. `beside_gateway`: the gateway
    writes to the same terminal. `engine_command` starts an engine. `arguments` are the words of the
    command line, for the record of starts. `file` is the absolute path of the configuration file.
    """
    config = read()
    setproctitle(f"herma worker {config.name}")
    outlive_hangups()
    log = WorkerLog(config.name, beside_gateway=beside_gateway, style=log_style(os.environ))
    # Imported objects are never freed. The garbage collector stops the loop, so it must not scan
    # them.
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        ended = trio.run(run_worker, config, log, engine_command, read, arguments, file)
    finally:
        log.close()
    return ended if isinstance(ended, int) else ended.become()


def _entry() -> tuple[str, ...]:
    """The program of this process; empty if another version's cannot replace it."""
    try:
        return own_entry()[0]
    except ConfigError:
        return ()


def _audit_path() -> Path | None:
    try:
        return state_dir(os.environ) / FILE_NAME
    except ConfigError:
        return None  # each act that is not recorded is logged


def _curve_keys(config: WorkerConfig) -> CurveClient | None:
    if config.curve_server_key is None and (config.curve_secret_file is None or config.group):
        return None
    if config.curve_secret_file is None or config.curve_server_key is None:
        raise ConfigError(
            f"worker `{config.name}`: curve_secret_file and curve_server_key belong together"
        )
    return load_curve_client(config.curve_secret_file, config.curve_server_key)
