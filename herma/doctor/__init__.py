"""`herma doctor`: the troubles of this host, why they matter, and the commands that mend them.

Owns the checks of a host from the bottom up: units, driver, memory, GPU, network, Python, model
files, settings. A check reads a `Host`, and a `Config` if it needs one, and yields findings; it
changes nothing. Safe repairs are actions of a finding (`Fix`). Must not import torch or start a
process other than short queries.
"""

from herma.doctor.checks import OF_CONFIG, OF_HOST, examine
from herma.doctor.finding import Finding, Fix, worst
from herma.doctor.gpu import is_ours
from herma.doctor.host import Host, QueryOutput, this_host
from herma.doctor.network import holder_of
from herma.doctor.starts import Change, folder_of, recorded, since_last_good
