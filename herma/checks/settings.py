"""Checks what a configuration says of providers, aliases and workers against this host.

Owns the lines for secrets that are missing, names that no request could use, and what external
engines lack here.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from config import Config, WorkerConfig, provider_api_key, secret_of
from protocol.errors import ConfigError
from workers import versions


def check_providers(config: Config, environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` for the first secret that is missing."""
    for problem in missing_secrets(config, environ):
        raise ConfigError(problem)


def missing_secrets(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """One line for each provider, receiver of alerts or server of shared limits whose secret is
    missing.
    """
    looks: list[Callable[[], object]] = [
        partial(secret_of, "[ledger] shared", config.ledger.shared_password_env, None, environ)
    ]
    for name, provider in config.providers.items():
        looks.append(partial(provider_api_key, name, provider, environ))
    for one in config.alerts:
        variables = (one.url_env, one.token_env)
        what = f"alerts `{one.name}`"
        looks += [partial(secret_of, what, variable, None, environ) for variable in variables]
    for look in looks:
        try:
            look()
        except ConfigError as error:
            yield str(error)


def check_aliases(config: Config) -> None:
    """Raise `ConfigError` for an alias that no request could use."""
    from gateway.api import alias_params
    from gateway.turn import read_model_prompts

    alias_params.check_aliases(config.models)
    read_model_prompts(config.models)


def check_script(worker: WorkerConfig) -> None:
    """Raise `ConfigError` if the worker has a script that is unreadable or invalid."""
    if worker.script is not None:
        from workers.replay import load_script

        load_script(Path(worker.script).expanduser())


def check_scripts(config: Config) -> None:
    """Raise `ConfigError` for the first script that is unreadable or invalid."""
    for worker in config.workers:
        check_script(worker)


def launch_problems(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """One line for each thing that a worker's external engine needs and this host lacks."""
    for worker in config.workers:
        for problem in versions.launch_problems(worker, environ):
            yield f"worker `{worker.name}`: {problem}"


def unserved_models(config: Config) -> Iterator[str]:
    """One line for each model without a worker or fallback in the file, or for an empty file."""
    if not config.models and not config.workers:
        yield "the file has neither [[models]] nor [[workers]]"
    served = {worker.serves for worker in config.workers}
    for model in config.models:
        if model.name not in served and not model.fallback:
            yield f"model `{model.name}`: the file has neither a worker nor a fallback for it"
