"""Carries a plan out, and records its progress.

Owns the file of the plan and the order of writing: before a step and after it. The plan decides
what follows a step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

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
    succeeded,
)
from herma.upgrade.workers import Mover
from housekeeping.state_file import write_atomically
from protocol.errors import ConfigError, HermaError
from protocol.reading import read_state
from workers.versions import Installation


class Interrupted(BaseException):
    """The user or the system wants the command to end."""


@dataclass(frozen=True, slots=True)
class UpgradeSteps:
    """The steps of a plan. `check` proves the new version; it raises `HermaError`."""

    installation: Installation
    mover: Mover
    check: Callable[[UpgradePlan], None]

    def take(self, action: Action, plan: UpgradePlan) -> None:
        """Carry out one step. Raises `HermaError` if it fails."""
        match action:
            case CheckVersion():
                self.check(plan)
            case MoveWorker(worker=worker):
                self.mover.move(worker, plan.new)
            case Return(worker=worker):
                self.mover.bring_back(worker, plan.old)
            case Switch(to=to, previous=previous):
                self.installation.switch(to, previous)


def carry_out(plan: UpgradePlan, steps: UpgradeSteps, say: Callable[[str], None]) -> UpgradePlan:
    """Carry out the plan; return it at its end. An interruption makes it go back. An interruption
    on the way back raises `Interrupted`, and the next command continues.
    """
    folder = steps.installation.folder
    save_plan(folder, plan)
    while (action := action_of(plan)) is not None:
        plan = begun(plan, action)
        save_plan(folder, plan)
        try:
            steps.take(action, plan)
        except HermaError as error:
            say(str(error))
            plan = failed(plan, action, str(error))
        except Interrupted:
            if plan.is_going_back:
                raise
            say("interrupted: going back; once more leaves it to the next command")
            plan = given_up(plan, "interrupted")
        else:
            plan = succeeded(plan, action)
        save_plan(folder, plan)
    return plan


def save_plan(folder: Path, plan: UpgradePlan) -> None:
    """Save the plan. Raises `ConfigError`: without the file a crash could not be repaired."""
    try:
        write_atomically(folder / "plan.json", msgspec.json.encode(plan))
    except OSError as error:
        raise ConfigError(f"{folder}: the plan cannot be written down: {error}") from error


def load_plan(folder: Path) -> UpgradePlan | None:
    """The latest plan; None if there was none. Raises `ConfigError` if it cannot be read."""
    return read_state(folder / "plan.json", UpgradePlan)
