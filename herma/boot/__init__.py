"""The start of Herma at boot: systemd units, container files, and a drill that proves them.

Owns the text of the files, the reading of units, and the drill. Must not import torch.
"""

from herma.boot.containers import compose_file, containerfile
from herma.boot.drill import Drill, local_url, only_this, run_drill
from herma.boot.own_files import is_edited, with_digest
from herma.boot.stopping import stop_running, systemctl
from herma.boot.unit_files import BootUnit, read_units
from herma.boot.units import UnitOptions, enabling, file_in, needed_variables, removing, unit_files
