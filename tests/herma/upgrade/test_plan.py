"""The plan under failures and crashes at any step.

The model is a host: which version each worker serves by, and the link. A crash may
come before a step, in its middle, after it, and before or after the plan is written down.
"""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from herma.upgrade.plan import (
    Action,
    CheckVersion,
    MoveWorker,
    Return,
    Switch,
    UpgradePlan,
    action_of,
    begun,
    failed,
    given_up,
    resumed,
    rollback,
    succeeded,
)

OLD, NEW = "1.0", "2.0"


class Crash(Exception):
    """The command is killed."""


class Host:
    """What exists. A worker may be in the middle of a step: `between`. They are
    brought back by their lease, or their parent, to what is current.
    """

    def __init__(self, num_workers: int, link: str = OLD) -> None:
        self.workers = {f"w{n}": link for n in range(num_workers)}
        self.link = link
        self.between: set[str] = set()

    def do(self, action: Action, plan: UpgradePlan, *, half: bool) -> None:
        """Carry a step out, or its first half."""
        match action:
            case MoveWorker(worker=worker):
                self.move(worker, plan.new, half=half)
            case Return(worker=worker):
                self.move(worker, plan.old, half=half)
            case Switch(to=to) if not half:
                self.link = to

    def move(self, worker: str, version: str, *, half: bool) -> None:
        """A worker changes, or is between two versions."""
        if half:
            self.between.add(worker)
        else:
            self.workers[worker] = version
            self.between.discard(worker)

    def time_passes(self) -> None:
        """What is between serves by the current version: its lease is over."""
        for worker in self.between:
            self.workers[worker] = self.link
        self.between.clear()

    def serves(self) -> set[str]:
        return {*self.workers.values(), self.link}


def _run(
    host: Host, plan: UpgradePlan, journal: list[bytes], outcomes: st.DataObject
) -> UpgradePlan:
    """Carry the plan out; each step may fail or crash."""
    while (action := action_of(plan)) is not None:
        plan = begun(plan, action)
        journal.append(msgspec.json.encode(plan))
        how = outcomes.draw(st.sampled_from(_HOWS), label=str(action))
        if how == "crash before":
            raise Crash
        if how == "crash within":
            host.do(action, plan, half=True)
            raise Crash
        is_bad = how == "fails" and not plan.is_going_back
        host.do(action, plan, half=is_bad)
        if how == "crash after":
            raise Crash
        plan = failed(plan, action, "bad") if is_bad else succeeded(plan, action)
        journal.append(msgspec.json.encode(plan))
        assert host.serves() <= {OLD, NEW}
    return plan


_HOWS = ["works"] * 6 + ["fails", "crash before", "crash within", "crash after"]


def _begin(num_workers: int) -> tuple[Host, UpgradePlan]:
    host = Host(num_workers)
    return host, UpgradePlan("x", OLD, NEW, workers=tuple(host.workers))


@given(num_workers=st.integers(0, 4), outcomes=st.data())
def test_the_next_command_finishes_or_rolls_back(num_workers: int, outcomes: st.DataObject) -> None:
    """However often the command dies: at last all serve by one version, that of the link."""
    host, plan = _begin(num_workers)
    journal: list[bytes] = []
    for _ in range(40):
        try:
            plan = _run(host, plan, journal, outcomes)
        except Crash:
            if outcomes.draw(st.booleans(), label="the lease ends first"):
                host.time_passes()
            plan = msgspec.json.decode(journal[-1], type=UpgradePlan)
            takes_back = outcomes.draw(st.booleans(), label="herma rollback")
            plan = given_up(plan, "rollback") if takes_back else resumed(plan)
        if plan.is_over:
            break
    else:
        plan = _run_to_the_end(host, plan)
    expected = NEW if plan.phase == "done" else OLD
    assert plan.is_over
    assert set(host.workers.values()) <= {expected}
    assert host.link == expected
    assert not host.between
    assert (plan.phase == "done") == (plan.reason == "")


def _run_to_the_end(host: Host, plan: UpgradePlan) -> UpgradePlan:
    while (action := action_of(plan)) is not None:
        plan = begun(plan, action)
        host.do(action, plan, half=False)
        plan = succeeded(plan, action)
    return plan


@given(num_workers=st.integers(0, 4), outcomes=st.data())
def test_a_rollback_ends_at_the_version_before(num_workers: int, outcomes: st.DataObject) -> None:
    """A rollback ends at the version before, whatever dies on the way, and however often it is
    begun.
    """
    host = Host(num_workers, link=NEW)
    journal: list[bytes] = []
    plan = rollback("x", NEW, OLD, host.workers)
    for _ in range(40):
        try:
            plan = _run(host, plan, journal, outcomes)
        except Crash:
            host.time_passes()
            plan = resumed(msgspec.json.decode(journal[-1], type=UpgradePlan))
        if plan.is_over:
            break
    else:
        plan = _run_to_the_end(host, plan)
    assert plan.phase == "undone"
    assert host.link == OLD
    assert set(host.workers.values()) <= {OLD}


def test_the_steps_in_order() -> None:
    """Each worker by itself, then the link."""
    _, plan = _begin(2)
    steps: list[Action] = []
    while (action := action_of(plan)) is not None:
        steps.append(action)
        plan = succeeded(begun(plan, action), action)
    assert steps == [CheckVersion(), MoveWorker("w0"), MoveWorker("w1"), Switch(NEW, OLD)]
    assert plan.phase == "done"


def test_a_failure_takes_the_link_back_before_the_workers() -> None:
    """A failure takes the link back before the workers, so that a process that dies meanwhile
    starts with the old version.
    """
    _, plan = _begin(2)
    for action in (CheckVersion(), MoveWorker("w0")):
        plan = succeeded(begun(plan, action), action)
    plan = failed(begun(plan, MoveWorker("w1")), MoveWorker("w1"), "w1: wrong answers")
    steps: list[Action] = []
    while (action := action_of(plan)) is not None:
        steps.append(action)
        plan = succeeded(begun(plan, action), action)
    assert steps == [Switch(OLD, ""), Return("w1"), Return("w0")]
    assert (plan.phase, plan.reason) == ("undone", "w1: wrong answers")


def test_what_fails_on_the_way_back_is_noted_and_passed_over() -> None:
    """One worker that cannot return does not keep the others."""
    plan = rollback("x", NEW, OLD, ("a", "b"))
    plan = succeeded(plan, Switch(OLD, ""))
    plan = failed(plan, Return("b"), "b is gone")
    assert action_of(plan) == Return("a")
    plan = succeeded(plan, Return("a"))
    assert (plan.phase, plan.troubles) == ("undone", ("b is gone",))
