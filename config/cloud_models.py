"""Which models of a file providers alone serve.

Owns that rule. Must not know what follows from it.
"""

from config.tables import Config
from protocol.addresses import IPC_PREFIX


def providers_alone(config: Config) -> frozenset[str]:
    """The models with providers for which the file has no worker, where workers meet the gateway at
    a Unix socket. Workers of other hosts, which dial a TCP address, have files of their own.
    """
    if not config.gateway.worker_bind.startswith(IPC_PREFIX):
        return frozenset()
    served = {worker.serves for worker in config.workers}
    models = (one for one in config.models if one.fallback and one.cloud == "allow")
    return frozenset(one.name for one in models) - served
