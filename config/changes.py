"""What a reload takes from a changed configuration file.

Owns which keys need a restart of the gateway, and the names of what differs. Must not read files or
apply anything.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from config.tables import Config, GatewayConfig

_FIXED: Final = (
    "host", "port", "processes", "process_port", "worker_bind", "drain_s",
    "hang_s",
    "curve_secret_file", "insecure_local", "signing_key_file", "tls_certificate_file",
    "tls_key_file",
    "responses", "spending_thresholds", "log", "traces",
)  # fmt: skip
"""Keys of `[gateway]` that need a restart: addresses of open sockets, files that are read at the
start, keys that the parent process of several uses too, thresholds that waiting alerts refer to,
and the listeners of requests (`log`, `traces`).
"""

_FIXED_TABLES: Final = ("ledger", "alerts", "hosts")
_TAKEN_TABLES: Final = ("limits", "loops", "repairs")


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """`config` is the configuration to apply. `taken` names what it has from the new file, `kept`
    what stays as it was until a restart.
    """

    config: Config
    taken: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


def gateway_changes(old: Config, new: Config) -> ConfigChanges:
    """What a gateway that runs with `old` takes from `new`. Tables of workers do not concern it."""
    differ = [key for key in GatewayConfig.__struct_fields__ if _differ(old, new, key)]
    held = (*_FIXED, *_of_the_secret(old.gateway, new.gateway))
    fixed = {key: getattr(old.gateway, key) for key in held}
    tables = {key: getattr(old, key) for key in _FIXED_TABLES}
    config = replace(new, gateway=replace(new.gateway, **fixed), **tables)
    kept = [f"[gateway] {key}" for key in differ if key in held]
    kept += [f"[{key}]" for key in _FIXED_TABLES if getattr(new, key) != getattr(old, key)]
    taken = [f"[gateway] {key}" for key in differ if key not in held]
    taken += [f"[{key}]" for key in _TAKEN_TABLES if getattr(new, key) != getattr(old, key)]
    taken += _named("model", _by_name(old.models), _by_name(new.models))
    taken += _named("provider", old.providers, new.providers)
    taken += _named("key", _by_name(old.keys), _by_name(new.keys))
    return ConfigChanges(config, tuple(taken), tuple(kept))


def _of_the_secret(old: GatewayConfig, new: GatewayConfig) -> tuple[str, ...]:
    """The keys that wait for a restart together with `curve_secret_file`: workers that know
    another key of the gateway can connect only after the restart.
    """
    is_same = old.curve_secret_file == new.curve_secret_file
    return () if is_same else ("curve_worker_keys",)


def _differ(old: Config, new: Config, key: str) -> bool:
    return bool(getattr(old.gateway, key) != getattr(new.gateway, key))


def _by_name(tables: Iterable[Any]) -> dict[str, Any]:
    return {table.name: table for table in tables}


def _named(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            yield f"{what} `{name}` (gone)"
        elif name not in old:
            yield f"{what} `{name}` (new)"
        elif old[name] != new[name]:
            yield f"{what} `{name}`"
