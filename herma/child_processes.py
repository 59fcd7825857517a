"""The child processes of a command.

Owns their start, their standard output, their restart after a crash and their end. Must not know
what they run. A child is forked from the main thread: Linux ties its parent-death signal to the
forking thread, and `trio.lowlevel.open_process` forks in a worker thread that ends after ten idle
seconds.
"""

import itertools
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias, final

import trio

from herma import EXIT_EXPLAINED
from herma.process_watch import ProcessWatch
from housekeeping.own_code import module_argv
from housekeeping.service_manager import ServiceManager, say
from housekeeping.signals import graceful_stop, hangups, outlive_hangups, signal_name

GRACE_S: Final = 5.0
"""How much longer than its drain time a process may take to end."""
_MAX_LINE_BYTES: Final = 4096
MIN_BACKOFF_S: Final = 0.2
MAX_BACKOFF_S: Final = 10.0
HEALTHY_S: Final = 30.0
"""A child that ran this long restarts with the shortest back-off."""


Beside: TypeAlias = "Callable[[Children], Awaitable[None]]"


def herma_argv(words: list[str]) -> list[str]:
    """The argv of a child that runs `herma WORDS` and ends with this process."""
    return [*module_argv("herma"), "--parent", str(os.getpid()), *words]


class Child:
    """A command that runs as one process at a time; each call of `run` starts it. A child that was
    asked to stop is killed after `stop_s`. `on_line` receives the lines of its standard output;
    without it the child inherits ours. `environ` and `folder` replace our environment and working
    directory. `watch` ends a child that hangs, and sets its environment.
    """

    def __init__(
        self,
        name: str,
        argv: list[str],
        *,
        stop_s: float,
        on_line: Callable[[str], None] | None = None,
        environ: Mapping[str, str] | None = None,
        folder: str | None = None,
        watch: ProcessWatch | None = None,
    ) -> None:
        self.name = name
        self._argv = argv
        self._stop_s = stop_s
        self._on_line = on_line
        self._environ = environ
        self._folder = folder
        self._watch = watch
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the latest start; None before the first one."""
        return None if self._process is None else self._process.pid

    def how_ended(self, status: int) -> str:
        """The end in words, for its exit status."""
        how = f"exit code {status}"
        if status < 0:
            how = signal_name(-status) or f"signal {-status}"
        return how if self._watch is None else self._watch.ended(how)

    async def run(self) -> int:
        """Start the child and wait for its end. Returns its exit status, negative for a signal.
        Raises `OSError` if it cannot be started.

        Cancelling asks the child to stop, waits up to `stop_s` and then kills it.
        """
        out = None if self._on_line is None else subprocess.PIPE
        watch = self._watch
        process = subprocess.Popen(  # noqa: ASYNC220
            self._argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            env=self._environ if watch is None else watch.environ,
            cwd=self._folder,
        )
        self._process = process
        with process:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._listen, process)
                    if watch is not None:
                        nursery.start_soon(watch.run, process)
                    status = await _wait(process)
                    nursery.cancel_scope.cancel()
            finally:
                if process.returncode is None:
                    with trio.CancelScope(shield=True):
                        await self._stop(process)
        return status

    def hurry(self) -> None:
        """Make a draining child leave at once: a second signal of the same kind skips the drain."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    def reload(self) -> None:
        """Ask the child to read its files again."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGHUP)

    async def _listen(self, process: "subprocess.Popen[bytes]") -> None:
        if self._on_line is None or process.stdout is None:
            return
        async with trio.lowlevel.FdStream(os.dup(process.stdout.fileno())) as stream:
            rest = b""
            async for data in stream:
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[-_MAX_LINE_BYTES:]
                for line in lines:
                    self._on_line(line.decode(errors="replace"))

    async def _stop(self, process: "subprocess.Popen[bytes]") -> None:
        process.terminate()
        with trio.move_on_after(self._stop_s):
            await _wait(process)
        if process.poll() is None:
            process.kill()
            await _wait(process)


async def _wait(process: "subprocess.Popen[bytes]") -> int:
    return await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)


@final
class Children:
    """The children that run. Each is restarted when it dies, until it is ended; a child explaining
    at its first start what is wrong is not.
    """

    def __init__(self) -> None:
        self._scopes: dict[Child, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None
        self._status = 0

    def start(self, child: Child) -> None:
        """Start a child beside the others. The others go on however this child ends."""
        self._start(child, lambda status: say(f"herma: {child.name} stays away: exit {status}"))

    @property
    def names(self) -> list[str]:
        """The names of the children that are not ending."""
        return [child.name for child, scope in self._scopes.items() if not scope.cancel_called]

    def end(self, name: str) -> int | None:
        """Ask the child to stop, which it does after its drain; its name is free at once. Returns
        its pid, if it runs.
        """
        for child, scope in self._scopes.items():
            if child.name == name and not scope.cancel_called:
                scope.cancel()
                return child.pid
        return None

    def hurry(self) -> None:
        """Make all children that drain end at once."""
        for child in self._scopes:
            child.hurry()

    def reload(self) -> None:
        """Ask all that are not ending to read their files again."""
        for child, scope in self._scopes.items():
            if not scope.cancel_called:
                child.reload()

    async def run(
        self, first: Sequence[Child], beside: Beside, stop: trio.Event, manager: ServiceManager
    ) -> int:
        """Run the `first` children, and the function `beside`, which may start and end children,
        until `stop`. Returns the exit status: 2 if one of the first explained what is wrong, which
        stops all.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery

            def stop_all(status: int) -> None:
                self._status = self._status or status
                nursery.cancel_scope.cancel()

            for child in first:
                self._start(child, stop_all)
            nursery.start_soon(beside, self)
            nursery.start_soon(manager.keep_alive)
            manager.ready(f"{len(first)} processes run")
            await stop.wait()
            stop_all(0)
        return self._status

    def _start(self, child: Child, give_up: Callable[[int], None]) -> None:
        assert self._nursery is not None
        scope = self._scopes[child] = trio.CancelScope()
        self._nursery.start_soon(self._keep, child, scope, give_up)

    async def _keep(
        self, child: Child, scope: trio.CancelScope, give_up: Callable[[int], None]
    ) -> None:
        try:
            with scope:
                await _keep_running(child, give_up)
        finally:
            del self._scopes[child]


async def _pass_hangups_on(children: Children) -> None:
    async for _ in hangups():
        children.reload()


async def keep_running(children: Sequence[Child], beside: Beside = _pass_hangups_on) -> int:
    """Run the children until SIGINT or SIGTERM; a second signal makes them skip their drain.
    `beside` runs beside them, and by default passes SIGHUP on to them.

    Returns the exit status: 2 if a child explained at its first start what is wrong. Both signals
    are ignored afterwards, so the process must end then.
    """
    outlive_hangups()
    stop = trio.Event()
    manager = ServiceManager.take(os.environ)
    running = Children()

    def leave() -> None:
        manager.stopping()
        stop.set()

    with graceful_stop(leave, lambda _number: running.hurry()):
        return await running.run(children, beside, stop, manager)


async def _keep_running(child: Child, give_up: Callable[[int], None]) -> None:
    """Restart the child when it dies, unless it explained at its first start what is wrong. After a
    later start such an error may pass (another program took its port while it was down), and the
    other children serve meanwhile.
    """
    backoff_s = MIN_BACKOFF_S
    for num_starts in itertools.count():
        started_at = trio.current_time()
        try:
            status = await child.run()
        except OSError as error:  # no process or memory is free now, or a file is gone
            say(f"herma: {child.name} cannot be started: {error}")
            status = EXIT_EXPLAINED
        if status == EXIT_EXPLAINED and num_starts == 0:
            give_up(status)
            return
        if trio.current_time() - started_at > HEALTHY_S:
            backoff_s = MIN_BACKOFF_S
        how = child.how_ended(status)
        say(f"herma: {child.name} ended: {how}; again in {backoff_s:g} s")
        await trio.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
