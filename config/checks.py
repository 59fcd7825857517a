"""What the types cannot say: references between tables and safe addresses.

Owns the rules that need more than one key. Must not open sockets or read secrets.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Final

from config.model import DUMMY_PREFIX, Config, TariffConfig, repeated
from protocol.addresses import MAX_PORT, is_local_address, is_loopback_host, nth_address
from protocol.errors import ConfigError

_NOT_REWRITTEN: Final = frozenset({"model", "messages", "prompt", "stream", "stream_options", "n"})


def check_config(config: Config, source: str) -> None:
    """Raise `ConfigError` for the first rule that `config` breaks."""
    _check_names(config, source)
    _check_references(config, source)
    _check_params(config, source)
    _check_prices(config, source)
    _check_addresses(config, source)
    check_processes(config, source)


def check_processes(config: Config, source: str) -> None:
    """Raise `ConfigError` for what several gateway processes cannot do together."""
    gateway = config.gateway
    if gateway.processes == 1:
        return
    if (limited := next(_limited(config), None)) is not None:
        raise ConfigError(
            f"{source}: {limited} has a spending limit, which one process alone can keep: each of "
            f"{gateway.processes} would spend as much; run one ([gateway] processes, --processes), "
            "or take the limits out"
        )
    last = gateway.processes - 1
    nth_address(gateway.worker_bind, last)
    if gateway.process_port is not None and not 0 < gateway.process_port <= MAX_PORT - last:
        raise ConfigError(
            f"{source}: [gateway] process_port = {gateway.process_port} leaves no port for each of "
            f"{gateway.processes} processes; it is 1 to {MAX_PORT - last}"
        )


def _limited(config: Config) -> Iterator[str]:
    yield from (
        f"provider `{name}`" for name, table in config.providers.items() if table.limits.any
    )
    yield from (f"key `{key.name}`" for key in config.keys if key.limits.any)


def _check_names(config: Config, source: str) -> None:
    public = list(chain.from_iterable((model.name, *model.aliases) for model in config.models))
    for kind, names in (
        ("model name or alias", public),
        ("worker name", [worker.name for worker in config.workers]),
        ("key name", [key.name for key in config.keys]),
        ("key hash", [key.hash for key in config.keys]),
    ):
        if (twice := repeated(names)) is not None:
            raise ConfigError(f"{source}: the {kind} `{twice}` is used twice")


def _check_references(config: Config, source: str) -> None:
    for model in config.models:
        for target in model.fallback:
            if target.provider not in config.providers:
                raise ConfigError(
                    f"{source}: model `{model.name}` falls back to provider `{target.provider}`, "
                    f"which has no table [providers.{target.provider}]"
                )
    models = {model.name for model in config.models}
    for worker in config.workers:
        if worker.model.startswith(DUMMY_PREFIX):
            raise ConfigError(
                f"{source}: worker `{worker.name}` cannot serve {worker.model}, which has neither "
                "weights nor a tokenizer; it is for `herma bench engine` alone"
            )
        if models and worker.serves not in models:
            raise ConfigError(
                f"{source}: worker `{worker.name}` serves `{worker.serves}`, "
                f"which is no [[models]] name; known: {', '.join(sorted(models))}"
            )


def _check_params(config: Config, source: str) -> None:
    """What decides who answers, and how, is the client's alone; a name must be one that answers."""
    for model in config.models:
        for alias in model.alias_params:
            if alias not in model.aliases:
                raise ConfigError(
                    f"{source}: model `{model.name}` has alias_params for `{alias}`, "
                    f"which is none of its aliases; known: {', '.join(model.aliases) or 'none'}"
                )
        for params in (*model.alias_params.values(), *(one.params for one in model.fallback)):
            named = {*params.set, *params.default, *params.drop}
            if taken := sorted(named & _NOT_REWRITTEN):
                raise ConfigError(
                    f"{source}: the params of model `{model.name}` rewrite `{taken[0]}`, "
                    f"which no rewriting may touch: {', '.join(sorted(_NOT_REWRITTEN))}"
                )


def _check_prices(config: Config, source: str) -> None:
    """Under a limit every price must be known: what cannot be counted cannot be limited."""
    key = next((key for key in config.keys if key.cloud == "allow" and key.limits.any), None)
    for model in config.models:
        for target in model.fallback if model.cloud == "allow" else ():
            provider = config.providers[target.provider]
            tariff = provider.models.get(target.model, TariffConfig())
            if provider.price is not None or tariff.price is not None:
                continue
            limited = f"provider `{target.provider}`" if provider.limits.any else None
            if limited is None and key is not None:
                limited = f"key `{key.name}`"
            if limited is not None:
                raise ConfigError(
                    f"{source}: {limited} has a spending limit, but the price of "
                    f"`{target.model}` at `{target.provider}` is not known; set [providers."
                    f"{target.provider}] price = {{ input = ..., output = ... }} (0 if it is free)"
                )


def _check_addresses(config: Config, source: str) -> None:
    gateway = config.gateway
    if not is_loopback_host(gateway.host) and not config.keys:
        raise ConfigError(
            f"{source}: [gateway] host {gateway.host} is public, but there are no [[keys]]; "
            "make one with `herma keys new` or bind 127.0.0.1"
        )
    if not is_local_address(gateway.worker_bind) and gateway.curve_secret_file is None:
        raise ConfigError(
            f"{source}: [gateway] worker_bind {gateway.worker_bind} is public, but there is no "
            "curve_secret_file; make a pair with `herma keys curve FILE` or bind 127.0.0.1"
        )
