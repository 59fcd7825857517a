"""Upgrades of Herma, and of an external engine's environment or image, with a way back.

Owns the plan and its steps: a version is installed beside the others, proved, tried on one worker,
then used by the rest, and made current; or all workers go back. Must not know what a worker does.
"""

from herma.upgrade.carry_out import Interrupted, UpgradeSteps, carry_out, load_plan
from herma.upgrade.install import InstallSource, adopt, image_runner, install, prune
from herma.upgrade.plan import UpgradePlan, given_up, resumed, rollback
from herma.upgrade.smoke import Smoke
from herma.upgrade.workers import MoveBounds, Mover, VersionRejected
