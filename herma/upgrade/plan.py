"""The plan of an upgrade: which step is next, and what a step's success or failure leads to.

Owns the states. The plan is written down before a step begins and after it has ended, so whatever
happens between, a reader knows what may have changed. Must not do anything.

    check ─► move ─► switch ─► done
      │        │        │
      ▼        └────────┴───┐
    undone ◄─ return ◄─ unswitch

A step that fails leads to the lower line, whose steps go on whatever fails.
"""

from collections.abc import Iterable
from typing import Final, Literal, assert_never

import msgspec

Phase = Literal[
    "check",
    "move",
    "switch",
    "done",
    "unswitch",
    "return",
    "undone",
]
_FORWARD: Final = frozenset(("check", "move", "switch"))


class CheckVersion(msgspec.Struct, frozen=True):
    """Prove of the new version, which is installed, what can be proved before it runs."""


class MoveWorker(msgspec.Struct, frozen=True):
    """Drain a worker; it serves with the new version once that has proved good."""

    worker: str


class Switch(msgspec.Struct, frozen=True):
    """Make the version `to` the current one for all later starts, and `previous` ("": none) the one
    before it.
    """

    to: str
    previous: str


class Return(msgspec.Struct, frozen=True):
    """Let a worker serve with the old version again, whatever it does now."""

    worker: str


Action = CheckVersion | MoveWorker | Switch | Return


class UpgradePlan(msgspec.Struct, frozen=True):
    """The way from version `old` to `new` of an installation. `workers` move in this order; the
    first is the trial. `touched` may have another version than `old`; of those, `moved` serve with
    `new`. `reason` is why the plan goes back, `troubles` are failures on the way. `earlier` was
    current before `old`: a later rollback leads to it if this plan goes back.
    """

    installation: str
    old: str
    new: str
    phase: Phase = "check"
    workers: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    reason: str = ""
    troubles: tuple[str, ...] = ()
    earlier: str = ""

    @property
    def is_over(self) -> bool:
        return self.phase in ("done", "undone")

    @property
    def is_going_back(self) -> bool:
        return self.phase not in _FORWARD and self.phase != "done"


def action_of(plan: UpgradePlan) -> Action | None:
    """The next step; None once the plan is over."""
    match plan.phase:
        case "move":
            return MoveWorker(next(name for name in plan.workers if name not in plan.moved))
        case "return":
            return Return(plan.touched[-1])
        case _:
            steps: dict[Phase, Action] = {
                "check": CheckVersion(),
                "switch": Switch(plan.new, plan.old),
                "unswitch": Switch(plan.old, plan.earlier),
            }
            return steps.get(plan.phase)


def begun(plan: UpgradePlan, action: Action) -> UpgradePlan:
    """The plan to record before a step is taken: what the step may change counts as changed."""
    match action:
        case MoveWorker(worker=worker) if worker not in plan.touched:
            return msgspec.structs.replace(plan, touched=(*plan.touched, worker))
        case _:
            return plan


def succeeded(plan: UpgradePlan, action: Action) -> UpgradePlan:
    """The plan after a successful step."""
    match action:
        case CheckVersion():
            return _forward(plan, "move")
        case MoveWorker(worker=worker):
            return _forward(msgspec.structs.replace(plan, moved=(*plan.moved, worker)), "move")
        case Switch() if plan.is_going_back:
            return _returning(plan)
        case Switch():
            return _at(plan, "done")
        case Return(worker=worker):
            left = tuple(name for name in plan.touched if name != worker)
            moved = tuple(name for name in plan.moved if name != worker)
            return _returning(msgspec.structs.replace(plan, touched=left, moved=moved))
        case _:
            assert_never(action)


def failed(plan: UpgradePlan, action: Action, why: str) -> UpgradePlan:
    """The plan after a failed step: it goes back. Failures on the way back are noted and passed
    over.
    """
    if plan.is_going_back:
        return succeeded(msgspec.structs.replace(plan, troubles=(*plan.troubles, why)), action)
    return given_up(plan, why)


def given_up(plan: UpgradePlan, why: str) -> UpgradePlan:
    """The plan going back, from any state."""
    if plan.is_over or plan.is_going_back:
        return plan
    plan = msgspec.structs.replace(plan, reason=why)
    if plan.phase == "check":
        return _at(plan, "undone")
    # The link first: later starts are then of the old version.
    return _at(plan, "unswitch")


def resumed(plan: UpgradePlan) -> UpgradePlan:
    """The plan of a command that was killed. It goes back if its trial has not been moved.
    Otherwise each worker is examined again: one that has died meanwhile has the old version.
    """
    if plan.phase == "check" or (plan.phase == "move" and not plan.moved):
        return given_up(plan, "the command ended before the first worker was on the new version")
    if plan.phase in ("move", "switch"):
        return _forward(msgspec.structs.replace(plan, moved=()), "move")
    return plan


def rollback(installation: str, current: str, previous: str, workers: Iterable[str]) -> UpgradePlan:
    """The plan from `current` back to `previous`, for all workers."""
    names = tuple(workers)
    return UpgradePlan(
        installation=installation,
        old=previous,
        new=current,
        phase="unswitch",
        workers=names,
        touched=names,
        moved=names,
        reason="herma rollback",
    )


def _at(plan: UpgradePlan, phase: Phase) -> UpgradePlan:
    return msgspec.structs.replace(plan, phase=phase)


def _forward(plan: UpgradePlan, phase: Phase) -> UpgradePlan:
    """The plan at `phase`, or at the next phase that has something to do."""
    if phase == "move" and set(plan.workers) <= set(plan.moved):
        phase = "switch"
    return _at(plan, phase)


def _returning(plan: UpgradePlan) -> UpgradePlan:
    return _at(plan, "return" if plan.touched else "undone")
