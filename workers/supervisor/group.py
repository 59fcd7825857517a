"""The link between the supervisors of a group's hosts.

Owns the sockets, the repetition of states and the callbacks when one changes. The head (rank 0)
listens; the other ranks dial it. No command line travels: each rank starts what its own file says.
Must not know processes, nor how an engine is judged (`engine_life.py`). `group_state.py` decides
when a run begins and ends.
"""

import os
from collections.abc import Callable
from typing import Final, TypeVar, final

import trio

from config import WorkerConfig
from protocol.errors import ConfigError, LinkError, WireError
from protocol.ids import ID_BYTES, WorkerId
from protocol.transport import DealerSocket, RouterSocket, load_curve_client, load_curve_server
from workers.ipc import (
    HostFacts,
    RankState,
    decode_head_state,
    decode_rank_state,
    encode_state,
)
from workers.supervisor.group_state import GroupHead, GroupRank
from workers.supervisor.host_facts import host_facts
from workers.supervisor.log import LogDeduper, WorkerLog

_T = TypeVar("_T")

REPEAT_S: Final = 0.5
_LOOK_S: Final = 1.0
"""How often the host is inspected while something keeps a run from starting."""


class Run:
    """The group's callbacks to the engine of a run: `kill` ends it for a reason, `says` reports a
    sign of life of another rank, `serves` reports that the whole group answers.
    """

    def __init__(
        self, kill: Callable[[str], None], says: Callable[[str], None], serves: Callable[[], None]
    ) -> None:
        self.kill = kill
        self.says = says
        self.serves = serves


def _opened(socket: RouterSocket | DealerSocket, open_at: Callable[[str], _T], address: str) -> _T:
    """The result of `open_at`. Closes the socket if `open_at` raises `ConfigError`."""
    try:
        return open_at(address)
    except ConfigError:
        socket.close()
        raise


async def _carry(socket: RouterSocket | DealerSocket, *acts: Callable[[], None]) -> None:
    """Carry frames and repeat `acts` until cancelled."""
    async with trio.open_nursery() as nursery:
        await nursery.start(socket.run)
        while True:
            for act in acts:
                act()
            await trio.sleep(REPEAT_S)


@final
class HeadGroup:
    """Rank 0. Its answers decide the health of all ranks."""

    def __init__(self, config: WorkerConfig, log: WorkerLog) -> None:
        """Listen for the ranks. Raises `ConfigError`."""
        assert config.group is not None
        assert config.group_address is not None
        self._config = config
        self._log = log
        self._head = GroupHead(config.group, config.ranks)
        self._own: Run | None = None
        self._news = trio.Event()
        self._causes = LogDeduper()
        self._said: dict[int, str] = {}
        keys = None
        if config.curve_secret_file is not None and config.group_keys:
            keys = load_curve_server(config.curve_secret_file, config.group_keys)
        self._socket = RouterSocket(self._on_frame, self._on_lost, keys=keys)
        self.address = _opened(self._socket, self._socket.bind, config.group_address)

    async def run(self) -> None:
        """Carry states until cancelled."""
        await _carry(self._socket, self._judge, self._tell_all)

    async def wait_start(self, on_wait: Callable[[str], None]) -> None:
        """Return once all ranks stand by and no host has an obstacle; the ranks start then too.
        `on_wait` receives what the head waits for.
        """
        while True:
            own = await trio.to_thread.run_sync(host_facts, self._config)
            self._judge()
            if not (waits := self._head.waits_for(own)):
                break
            text = "; ".join(waits)
            on_wait(text)
            if self._causes.is_news(text, trio.current_time()):
                self._log.info(f"group `{self._config.group}` waits: {text}")
            with trio.move_on_after(_LOOK_S):
                await self._news.wait()
            self._news = trio.Event()
        self._causes.clear()
        for warning in self._head.warnings(own):
            self._log.warning(f"group `{self._config.group}`: {warning}")
        self._head.begin(os.urandom(ID_BYTES).hex())
        self._tell_all()

    def began(self, run: Run) -> None:
        """This host's engine of the run has been spawned."""
        self._own = run

    def progress(self, phase: str, fraction: float, detail: str) -> None:
        """Ignore the progress of this host's engine, which other ranks need not know."""

    def ready(self) -> None:
        """This host's engine has generated tokens."""
        self._head.serves()
        self._tell_all()

    def ended(self, cause: str) -> None:
        """This host's engine of the run has ended: all ranks end theirs."""
        self._own = None
        self._head.end(cause)
        self._tell_all()

    def _on_frame(self, peer: WorkerId, frame: bytes) -> None:
        try:
            state = decode_rank_state(frame)
        except WireError as error:
            self._refuse(peer, str(error))
            return
        if refusal := self._head.heard(peer, state, trio.current_time()):
            self._refuse(peer, refusal)
            return
        self._news.set()
        self._judge()
        who = f"rank {state.rank} ({state.name})"
        said = f"{who}: {state.phase} {state.fraction:.0%} {state.detail}"
        if state.run == self._head.run and self._said.get(state.rank) != said:
            self._said[state.rank] = said
            if self._own is not None and state.phase:
                self._own.says(said.rstrip())

    def _on_lost(self, peer: WorkerId) -> None:
        self._head.lost(peer)
        self._judge()

    def _judge(self) -> None:
        if (verdict := self._head.verdict(trio.current_time())) is not None and self._own:
            self._own.kill(verdict)

    def _refuse(self, peer: WorkerId, refusal: str) -> None:
        if self._causes.is_news(refusal, trio.current_time()):
            self._log.warning(f"group `{self._config.group}` refuses a rank: {refusal}")
        self._send(peer, encode_state(self._head.state(refusal)))

    def _tell_all(self) -> None:
        frame = encode_state(self._head.state())
        for peer in self._head.peers():
            self._send(WorkerId(peer), frame)

    def _send(self, peer: WorkerId, frame: bytes) -> None:
        try:
            self._socket.send(peer, frame)
        except LinkError:
            self._head.lost(peer)


@final
class RankGroup:
    """A rank without an API: its engine starts and ends with the head's."""

    def __init__(self, config: WorkerConfig, log: WorkerLog) -> None:
        """Start dialling. Raises `ConfigError`."""
        assert config.group_address is not None
        self._config = config
        self._log = log
        self._session = os.urandom(ID_BYTES).hex()
        self._rank = GroupRank(self._session, trio.current_time())
        self._own: Run | None = None
        self._news = trio.Event()
        self._causes = LogDeduper()
        self._cause = ""
        self._is_clean = False
        self._facts = HostFacts()
        self._progress = ("", 0.0, "")
        keys = None
        if config.curve_secret_file is not None and config.group_server_key is not None:
            keys = load_curve_client(config.curve_secret_file, config.group_server_key)
        self._socket = DealerSocket(
            WorkerId(os.urandom(ID_BYTES)), self._on_frame, keys=keys, on_link=self._link_changed
        )
        _opened(self._socket, self._socket.connect, config.group_address)

    async def run(self) -> None:
        """Carry states until cancelled."""
        await _carry(self._socket, self._tell, self._judge)

    async def wait_start(self, on_wait: Callable[[str], None]) -> None:
        """Stand by without an engine; return when the head starts all ranks."""
        while True:
            self._facts = await trio.to_thread.run_sync(host_facts, self._config)
            self._is_clean = True
            self._tell()
            if (run := self._rank.run_to_begin()) is not None:
                break
            on_wait(self._rank.refusal or f"the head at {self._config.group_address}")
            with trio.move_on_after(_LOOK_S):
                await self._news.wait()
            self._news = trio.Event()
        self._rank.begin(run)
        self._cause, self._is_clean = "", False
        self._tell()

    def began(self, run: Run) -> None:
        """This host's engine of the run has been spawned."""
        self._own = run

    def progress(self, phase: str, fraction: float, detail: str) -> None:
        """Send the progress of this host's engine to the head, for its table."""
        self._progress = (phase, min(max(fraction, 0.0), 1.0), detail)

    def ready(self) -> None:
        """Do nothing: only the head's engine answers."""

    def ended(self, cause: str) -> None:
        """This host's engine of the run has ended."""
        self._own, self._cause, self._progress = None, cause or "unknown", ("", 0.0, "")
        self._tell()

    def _on_frame(self, frame: bytes) -> None:
        try:
            self._rank.heard(decode_head_state(frame), trio.current_time())
        except WireError as error:
            if self._causes.is_news(str(error), trio.current_time()):
                self._log.warning(f"group `{self._config.group}`: {error}")
            return
        refusal = self._rank.refusal
        if refusal and self._causes.is_news(refusal, trio.current_time()):
            self._log.warning(
                f"group `{self._config.group}`: the head refuses this rank: {refusal}"
            )
        self._news.set()
        self._judge()

    def _link_changed(self, is_up: bool) -> None:
        if is_up:
            self._socket.drop_waiting()
            self._tell()
        else:
            self._rank.lost()
            self._judge()

    def _judge(self) -> None:
        if self._own is None:
            return
        if (verdict := self._rank.verdict(trio.current_time())) is not None:
            self._own.kill(verdict)
        elif self._rank.serves:
            self._own.serves()

    def _tell(self) -> None:
        assert self._config.group is not None
        phase, fraction, detail = self._progress
        state = RankState(
            group=self._config.group,
            rank=self._config.rank,
            name=self._config.name,
            session=self._session,
            run=self._rank.begun,
            is_clean=self._is_clean,
            cause=self._cause[:1000],
            phase=phase,
            fraction=fraction,
            detail=detail[:200],
            facts=self._facts,
        )
        try:
            self._socket.send(encode_state(state))
        except LinkError:
            self._socket.drop_waiting()  # the newest state supersedes those before it


Group = HeadGroup | RankGroup


def open_group(config: WorkerConfig, log: WorkerLog) -> Group | None:
    """The worker's place in its group, if it has one. Raises `ConfigError`."""
    if config.group is None:
        return None
    return HeadGroup(config, log) if config.rank == 0 else RankGroup(config, log)
