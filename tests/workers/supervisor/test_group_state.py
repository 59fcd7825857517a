"""When the ranks of a group start and end: the two sides against each other, without sockets."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import WireError
from workers.ipc import (
    HeadState,
    HostFacts,
    LinkFacts,
    RankState,
    decode_head_state,
    decode_rank_state,
    encode_state,
)
from workers.supervisor.group_state import LOST_S, GroupHead, GroupRank, host_mistakes

CLEAN = RankState("ds4", 1, "b", "s1", is_clean=True)


def test_all_start_together_and_one_death_ends_all() -> None:
    """The run has a name of its own; a rank begins it once."""
    head, rank = GroupHead("ds4", 2), GroupRank("s1", 0.0)
    assert head.waits_for(HostFacts()) == ["rank 1 has not dialled yet"]
    assert head.heard(b"p", CLEAN, 0.0) == ""
    assert head.waits_for(HostFacts()) == []
    rank.heard(head.state(), 0.0)
    assert rank.run_to_begin() is None
    head.begin("r1")
    rank.heard(head.state(), 0.1)
    assert rank.run_to_begin() == "r1"
    rank.begin("r1")
    assert rank.run_to_begin() is None
    assert rank.verdict(0.2) is None
    # The old state is on its way still.
    assert head.heard(b"p", CLEAN, 0.2) == ""
    assert head.verdict(0.2) is None
    running = msgspec.structs.replace(CLEAN, run="r1", is_clean=False)
    head.heard(b"p", running, 0.3)
    head.serves()
    rank.heard(head.state(), 0.3)
    assert rank.serves
    head.heard(b"p", msgspec.structs.replace(running, cause="exit code 137"), 0.4)
    assert head.verdict(0.4) == "rank 1 (b) has ended: exit code 137"
    head.end("rank 1 is dead")
    rank.heard(head.state(), 0.5)
    assert rank.verdict(0.5) == "the group ends this run: rank 1 is dead"
    assert head.waits_for(HostFacts()) == ["rank 1 (b) cleans up"]
    head.heard(b"p", msgspec.structs.replace(CLEAN, run="r1", cause="exit code 137"), 0.6)
    assert head.waits_for(HostFacts()) == []


def test_a_lost_host_is_named() -> None:
    """A lost host is named, by its silence or by the end of its connection; a supervisor that
    starts anew has no part in the run.
    """
    for way in ("silence", "connection", "session"):
        head = GroupHead("ds4", 2)
        head.heard(b"p", CLEAN, 0.0)
        head.begin("r1")
        if way == "silence":
            assert head.verdict(LOST_S - 0.1) is None
            assert "rank 1 (b) is lost: its host has not answered" in str(head.verdict(LOST_S))
        if way == "connection":
            head.lost(b"p")
            assert head.verdict(0.1) == "rank 1 (b) is lost: its connection is gone"
        if way == "session":
            head.heard(b"q", msgspec.structs.replace(CLEAN, session="s2"), 0.1)
            assert head.verdict(0.1) == "rank 1 (b) was started anew"
            rank = GroupRank("s2", 0.0)
            rank.heard(head.state(), 0.1)
            assert rank.run_to_begin() is None


def test_a_rank_without_its_head_ends() -> None:
    """A rank without its head ends, after a silence or with the connection."""
    rank = GroupRank("s1", 0.0)
    rank.heard(HeadState("r1", ("s1",)), 0.0)
    rank.begin("r1")
    assert rank.verdict(LOST_S - 0.1) is None
    assert "rank 0 is lost" in str(rank.verdict(LOST_S))
    rank.heard(HeadState("r1", ("s1",)), LOST_S)
    rank.lost()
    assert "the connection to the head is gone" in str(rank.verdict(LOST_S))


def test_a_late_state_starts_no_rank_again() -> None:
    """A late state starts no rank again, and neither does a state of a run that is over."""
    rank = GroupRank("s1", 0.0)
    for run in ("r1", "r2"):
        rank.heard(HeadState(run, ("s1",)), 0.0)
        assert rank.run_to_begin() == run
        rank.begin(run)
    rank.heard(HeadState("r1", ("s1",)), 0.0)
    assert rank.run_to_begin() is None


def test_strangers_are_refused() -> None:
    """Another group, a rank that it has not, the place of a living one."""
    head = GroupHead("ds4", 2)
    assert "not rank 1 of `x`" in head.heard(b"p", msgspec.structs.replace(CLEAN, group="x"), 0.0)
    assert "not rank 2" in head.heard(b"p", msgspec.structs.replace(CLEAN, rank=2), 0.0)
    head.heard(b"p", CLEAN, 0.0)
    other = msgspec.structs.replace(CLEAN, name="c", session="s3")
    assert head.heard(b"q", other, 1.0) == "rank 1 is `b` already"
    assert head.heard(b"q", other, LOST_S) == ""


GOOD = HostFacts("1", "580.142", {"eth0": LinkFacts(True, 9000)})


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (GOOD, None),
        (HostFacts("1", "", {}), None),
        (HostFacts("1", "580.126", {}), "the driver differs: a 580.142, b 580.126"),
        (HostFacts("2", "580.142", {}), "Herma differs: a 1, b 2"),
        (HostFacts("1", "", {"eth1": LinkFacts(True, 1500)}), "the MTU differs: a eth0 9000, b "),
        (HostFacts("1", "", {"eth1": LinkFacts(False, 9000)}), "b: the link eth1 is down"),
        (HostFacts("1", "", {}, (29501,)), "b: port 29501 is in use"),
        (HostFacts("1", "", {}, (), ("psm_1",)), None),
    ],
)
def test_hosts_are_compared_before_a_start(facts: HostFacts, says: str | None) -> None:
    """Hosts are compared before a start; a difference is said in words, with the remedy."""
    found = list(host_mistakes({"a": GOOD, "b": facts}))
    assert (not found) if says is None else found[0].startswith(says)


def test_segments_that_nobody_uses_are_a_warning() -> None:
    """Segments that no process uses are a warning: they may be another program's, so nothing waits
    for their removal.
    """
    head = GroupHead("ds4", 2)
    left = HostFacts(segments=("psm_1",))
    head.heard(b"p", msgspec.structs.replace(CLEAN, facts=left), 0.0)
    assert head.waits_for(HostFacts()) == []
    (warning,) = head.warnings(HostFacts())
    assert warning.startswith("rank 1 (b): /dev/shm holds psm_1")


@given(st.binary(max_size=60))
def test_garbage_is_refused(frame: bytes) -> None:
    """Garbage of either side is refused."""
    for decode in (decode_rank_state, decode_head_state):
        try:
            state = decode(frame)
        except WireError:
            continue
        assert decode(encode_state(state)) == state


class Rank:
    """A rank's supervisor, without sockets: its engine runs, or is being cleaned up after."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.num_starts = 0
        self.begun: list[str] = []
        self.restart(0.0)

    def restart(self, now: float) -> None:
        """A new supervisor process."""
        self.num_starts += 1
        self.session = f"{self.number}.{self.num_starts}"
        self.view = GroupRank(self.session, now)
        self.runs, self.is_clean, self.cause = False, True, ""

    def state(self) -> RankState:
        return RankState(
            "g",
            self.number,
            f"r{self.number}",
            self.session,
            run=self.view.begun,
            is_clean=self.is_clean,
            cause=self.cause,
        )

    def step(self, now: float) -> None:
        """What `RankGroup` does after a state of the head."""
        if self.runs and self.view.verdict(now) is not None:
            self.die("the group ends it")
        elif not self.runs and self.is_clean and (run := self.view.run_to_begin()) is not None:
            assert run not in self.begun
            self.begun.append(run)
            self.view.begin(run)
            self.runs, self.is_clean, self.cause = True, False, ""

    def die(self, cause: str) -> None:
        self.runs, self.cause = False, cause


class Group:
    """One head and its ranks; states may be lost, late or twice."""

    def __init__(self, num_ranks: int) -> None:
        self.head = GroupHead("g", num_ranks)
        self.ranks = [Rank(number) for number in range(1, num_ranks)]
        self.late: list[tuple[Rank, RankState, HeadState]] = []
        self.now = 0.0
        self.num_runs = 0

    def exchange(self, rank: Rank) -> None:
        """A state each way."""
        self.head.heard(rank.session.encode(), rank.state(), self.now)
        rank.view.heard(self.head.state(), self.now)
        rank.step(self.now)

    def judge(self) -> None:
        """What the head's supervisor does in its loop."""
        verdict = self.head.verdict(self.now)
        if self.head.run and verdict is not None:
            self.head.end(verdict)
        elif not self.head.run and not self.head.waits_for(HostFacts()):
            self.num_runs += 1
            self.head.begin(f"run {self.num_runs}")

    def peace(self) -> None:
        """Everything arrives, and is cleaned up."""
        for _ in range(8):
            self.now += 0.5
            for rank in self.ranks:
                rank.is_clean = rank.is_clean or not rank.runs
                self.exchange(rank)
            self.judge()

    def trouble(self, what: int, rank: Rank, pause_s: float) -> None:
        """One thing that happens, good or bad."""
        match what:
            case 0 | 1 | 2:
                self.exchange(rank)
            case 3:
                self.judge()
            case 4 if rank.runs:
                rank.die("exit code 137")
            case 5:
                rank.is_clean = rank.is_clean or not rank.runs
            case 6:
                rank.restart(self.now)
            case 7:
                self.late.append((rank, rank.state(), self.head.state()))
                self.now += pause_s
            case 8 if self.late:
                rank, state, head = self.late.pop(0)
                self.head.heard(b"late", state, self.now)
                rank.view.heard(head, self.now)
                rank.step(self.now)
            case 9:
                self.head.lost(rank.session.encode())
                rank.view.lost()


@given(
    st.integers(2, 4),
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 2), st.sampled_from([0.5, LOST_S])), max_size=40
    ),
)
def test_after_any_trouble_all_ranks_are_in_one_run(
    num_ranks: int, troubles: list[tuple[int, int, float]]
) -> None:
    """Deaths, restarted supervisors, lost links, late states and pauses in any order: no rank
    begins a run twice, and once there is peace all are in the head's run.
    """
    group = Group(num_ranks)
    group.peace()
    for what, number, pause_s in troubles:
        group.trouble(what, group.ranks[number % len(group.ranks)], pause_s)
    group.peace()
    assert group.head.run
    for rank in group.ranks:
        assert rank.runs
        assert rank.view.begun == group.head.run
