"""The CURVE pairs that are made for a gateway on loopback and the workers of its file.

Owns which workers get one, and that a public key belongs to one name. The pairs are in the state
directory, in files of mode 0600: who can read them is this user. Must not know sockets.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from config import Config, keys_dir, takes_made_keys
from protocol.transport import gateway_key_file, kept_pair, worker_key_file


def with_made_keys(config: Config, source: str, environ: Mapping[str, str]) -> Config:
    """`config` with the made keys, if its gateway takes them; missing pairs are made now. `source`
    is the path of its file, "" without one. Blocks, and raises `ConfigError`.
    """
    gateway = config.gateway
    if not takes_made_keys(gateway):
        return config
    folder = keys_dir(source, environ)
    path = gateway_key_file(folder)
    kept_pair(path)
    names = [one.name for one in config.workers if one.curve_secret_file is None]
    keys = {name: kept_pair(worker_key_file(folder, name)).public for name in names}
    return replace(
        config, gateway=replace(gateway, curve_secret_file=str(path), curve_worker_keys=keys)
    )
