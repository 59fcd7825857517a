"""Upgrades of Herma, and of an external engine's environment or image, with a way back.

Owns the plan and its steps: a version is installed beside the others, proved, tried on one worker,
then used by the rest, and made current; or all workers go back. Must not know what a worker does.
"""

from herma.upgrade.carry_out import Interrupted, Steps, carry_out, load_plan, save_plan
from herma.upgrade.install import Source, adopt, image_runner, install, prune
from herma.upgrade.plan import Plan, given_up, resumed, rollback
from herma.upgrade.smoke import Smoke
from herma.upgrade.workers import Bounds, Mover, Rejected

__all__ = [
    "Bounds",
    "Interrupted",
    "Mover",
    "Plan",
    "Rejected",
    "Smoke",
    "Source",
    "Steps",
    "adopt",
    "carry_out",
    "given_up",
    "image_runner",
    "install",
    "load_plan",
    "prune",
    "resumed",
    "rollback",
    "save_plan",
]
