"""Decides when the ranks of a group start, and when all of them must end.

Owns the head's view of its ranks, a rank's view of its head, and the comparison of their hosts
before a start. `now` is seconds of any monotonic clock. Must not know sockets, processes or files.

A run has a unique name. The head names a run when all ranks stand by without an engine. A rank
begins each run once, and only a run that contains the rank's own session. So neither a repeated nor
a late message can start a rank alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

from workers.ipc import HeadState, HostFacts, RankState

LOST_S: Final = 5.0
"""States come every half a second. A lost connection is noticed sooner."""


@dataclass(slots=True)
class _Member:
    peer: bytes
    state: RankState
    heard_at: float


@final
class GroupHead:
    """Rank 0's view of the other `num_ranks - 1` ranks."""

    def __init__(self, group: str, num_ranks: int) -> None:
        self._group = group
        self._num_ranks = num_ranks
        self._members: dict[int, _Member] = {}
        self._lost: dict[int, str] = {}
        self.run = ""
        self._reason = "it starts"
        self._sessions: dict[int, str] = {}
        self._serves = False

    def heard(self, peer: bytes, state: RankState, now: float) -> str:
        """Take a rank's state. Returns a refusal in words, or ""."""
        if state.group != self._group or not 0 < state.rank < self._num_ranks:
            return (
                f"this is group `{self._group}` of {self._num_ranks} ranks, not rank {state.rank} "
                f"of `{state.group}`"
            )
        known = self._members.get(state.rank)
        if known is not None and known.state.name != state.name and now < known.heard_at + LOST_S:
            return f"rank {state.rank} is `{known.state.name}` already"
        self._members[state.rank] = _Member(peer, state, now)
        self._lost.pop(state.rank, None)
        return ""

    def lost(self, peer: bytes) -> None:
        """The connection of a rank is lost."""
        for rank, member in list(self._members.items()):
            if member.peer == peer:
                self._forget(rank, "its connection is gone")

    def verdict(self, now: float) -> str | None:
        """The reason why the run must end, or None. Also forgets ranks that are silent."""
        for rank, member in list(self._members.items()):
            if now - member.heard_at >= LOST_S:
                self._forget(rank, f"its host has not answered for {LOST_S:g} s")
        if not self.run:
            return None
        for rank, session in self._sessions.items():
            if rank not in self._members:
                return f"rank {rank}{self._lost.get(rank, ' is lost')}"
            state = self._members[rank].state
            if state.session != session:
                return f"rank {rank} ({state.name}) was started anew"
            if state.run == self.run and (state.cause or state.is_clean):
                return f"rank {rank} ({state.name}) has ended: {state.cause or 'unknown'}"
        return None

    def waits_for(self, own: HostFacts) -> list[str]:
        """The obstacles to a start, in words; empty if the run may start."""
        waits = []
        for rank in range(1, self._num_ranks):
            member = self._members.get(rank)
            if member is None:
                waits.append(f"rank {rank}{self._lost.get(rank, ' has not dialled yet')}")
            elif not member.state.is_clean:
                waits.append(f"rank {rank} ({member.state.name}) cleans up")
        return waits or list(host_mistakes(self._hosts(own)))

    def warnings(self, own: HostFacts) -> list[str]:
        """Findings on the hosts that may disturb a run."""
        return [
            f"{host}: /dev/shm holds {', '.join(facts.segments[:3])}, which no process uses: set "
            'prepare = ["clear-shm"]'
            for host, facts in self._hosts(own).items()
            if facts.segments
        ]

    def begin(self, run: str) -> None:
        """Begin a run: all ranks start now."""
        self.run, self._reason, self._serves = run, "", False
        self._sessions = {rank: one.state.session for rank, one in self._members.items()}

    def end(self, reason: str) -> None:
        """End the run; the ranks end their engines."""
        self.run, self._reason, self._serves = "", reason, False

    def serves(self) -> None:
        """Note that the head's engine has generated tokens."""
        self._serves = True

    def state(self, refusal: str = "") -> HeadState:
        """The state that the ranks receive."""
        sessions = tuple(self._sessions.values()) if self.run else ()
        return HeadState(self.run, sessions, self._reason, self._serves, refusal)

    def peers(self) -> list[bytes]:
        """The connected ranks."""
        return [member.peer for member in self._members.values()]

    def _hosts(self, own: HostFacts) -> dict[str, HostFacts]:
        hosts = {"rank 0": own}
        for rank, member in sorted(self._members.items()):
            hosts[f"rank {rank} ({member.state.name})"] = member.state.facts
        return hosts

    def _forget(self, rank: int, why: str) -> None:
        name = self._members.pop(rank).state.name
        self._lost[rank] = f" ({name}) is lost: {why}"


@final
class GroupRank:
    """A rank's view of its head."""

    def __init__(self, session: str, now: float) -> None:
        self._session = session
        self._heard_at = now
        self._head = HeadState(reason="the head has not answered yet")
        self.begun = ""
        self._all_begun: set[str] = set()

    def heard(self, head: HeadState, now: float) -> None:
        """Take the head's state."""
        self._head, self._heard_at = head, now

    def lost(self) -> None:
        """The connection to the head is lost."""
        self._head = HeadState(reason="the connection to the head is gone")

    @property
    def refusal(self) -> str:
        """The reason why the head does not accept this rank, or ""."""
        return self._head.refusal

    @property
    def serves(self) -> bool:
        """Whether the run that this rank has begun answers."""
        return self._head.serves and self._head.run == self.begun

    def run_to_begin(self) -> str | None:
        """The run that this rank must begin now, if any."""
        run = self._head.run
        is_ours = self._session in self._head.sessions
        return run if is_ours and run and run not in self._all_begun else None

    def begin(self, run: str) -> None:
        """Note that this rank begins the run."""
        self.begun = run
        self._all_begun.add(run)

    def verdict(self, now: float) -> str | None:
        """The reason why the begun run must end, or None."""
        if now - self._heard_at >= LOST_S:
            return f"rank 0 is lost: its host has not answered for {LOST_S:g} s"
        if self._head.run == self.begun:
            return None
        return f"the group ends this run: {self._head.reason or 'another one has begun'}"


def host_mistakes(hosts: Mapping[str, HostFacts]) -> Iterator[str]:
    """The differences between hosts, and the busy ports and links, that forbid a start."""
    for host, facts in hosts.items():
        for name, link in facts.links.items():
            if not link.is_up:
                yield f"{host}: the link {name} is down"
        for port in facts.taken_ports:
            yield f"{host}: port {port} is in use: end the program that holds it (ss -ltnp)"
    mtus = {
        f"{host} {name}": str(link.mtu)
        for host, facts in hosts.items()
        for name, link in facts.links.items()
        if link.mtu
    }
    yield from _different("the MTU", mtus)
    yield from _different("the driver", {host: one.driver for host, one in hosts.items()})
    yield from _different("Herma", {host: one.build for host, one in hosts.items()})


def _different(what: str, values: Mapping[str, str]) -> Iterator[str]:
    known = {place: value for place, value in values.items() if value}
    if len(set(known.values())) > 1:
        shown = ", ".join(f"{place} {value}" for place, value in known.items())
        yield f"{what} differs: {shown}"
