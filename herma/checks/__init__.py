"""What of this host is examined before a configuration runs on it.

Four commands examine a host, each for another question:

- `herma up`, several gateway processes and a reload: can this host run the file? `check_host` ends
  with the first reason why not.
- `herma config check`: is the file right, wherever its workers run? `look_at_files` yields notes.
- `herma doctor`: what is wrong with the host itself? `herma.doctor.checks` has those checks, from
  the driver to the units.
- each process at its start: what it needs itself (`workers.engine_extra`, `workers.versions`).

`table.py` has the checks of the first two in one list, with what each of the two does about a
problem. A check is a function of the configuration and the environment that yields one line for
each problem, and raises `ConfigError` for what is wrong on every host.
"""

from herma.checks.models import check_only_model, known_model
from herma.checks.ports import check_process_ports, claim_port
from herma.checks.settings import (
    check_aliases,
    check_providers,
    launch_problems,
    missing_secrets,
    unserved_models,
)
from herma.checks.table import check_host, look_at_files
