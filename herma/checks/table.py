"""The checks of a configuration on this host, in one list.

Owns their order, and what a start and `herma config check` do about the problems of each.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from config import Config
from herma.checks.files import (
    certificate,
    drafters_beside_models,
    gateway_links,
    signing_key,
    stores_and_programs,
    worker_files,
)
from herma.checks.models import check_model_texts, missing_drafters, missing_models
from herma.checks.ports import check_port
from herma.checks.settings import (
    check_aliases,
    check_providers,
    check_scripts,
    launch_problems,
)
from protocol.errors import ConfigError
from workers.engine_extra import check_engine_extra

_Problems: TypeAlias = Callable[[Config, Mapping[str, str]], Iterator[str] | None]
"""What a check returns: lines of problems, or None if it raises or finds nothing."""


class Outcome(Enum):
    """What is done about the problems of a check. A `ConfigError` always ends the command."""

    SKIPPED = "skipped"
    """The check is not made."""
    NOTE = "note"
    """`herma config check` prints a line for each problem; a start prints none."""
    ERROR = "error"
    """The first problem ends the command."""


class Check(NamedTuple):
    """`problems` yields a line for each problem. `remedy` is what a start adds to the line of an
    error. A check that looks `by_worker` can be given the file with one worker at a time.
    """

    problems: _Problems
    at_start: Outcome
    in_file: Outcome
    remedy: str = ""
    by_worker: bool = False


CHECKS: Final = (
    # `herma config check` itself calls the checks of secrets and aliases: `--no-secrets` omits the
    # first.
    Check(check_providers, at_start=Outcome.ERROR, in_file=Outcome.SKIPPED),
    Check(
        lambda config, _: check_engine_extra(config.workers),
        at_start=Outcome.ERROR,
        in_file=Outcome.SKIPPED,
    ),
    *(
        Check(part, at_start=Outcome.SKIPPED, in_file=Outcome.NOTE)
        for part in (gateway_links, certificate, signing_key, stores_and_programs)
    ),
    Check(
        lambda config, _: missing_models(config),
        at_start=Outcome.ERROR,
        in_file=Outcome.NOTE,
        remedy="; correct its `model`",
    ),
    Check(
        lambda config, _: (problem for _, problem in missing_drafters(config)),
        at_start=Outcome.ERROR,
        in_file=Outcome.SKIPPED,
        remedy="; correct its `speculation`",
    ),
    Check(
        lambda config, _: check_aliases(config),
        at_start=Outcome.ERROR,
        in_file=Outcome.SKIPPED,
    ),
    Check(
        lambda config, _: check_model_texts(config),
        at_start=Outcome.NOTE,
        in_file=Outcome.NOTE,
        by_worker=True,
    ),
    Check(drafters_beside_models, at_start=Outcome.SKIPPED, in_file=Outcome.NOTE, by_worker=True),
    Check(
        lambda config, _: check_scripts(config),
        at_start=Outcome.ERROR,
        in_file=Outcome.SKIPPED,
    ),
    Check(launch_problems, at_start=Outcome.ERROR, in_file=Outcome.NOTE),
    Check(worker_files, at_start=Outcome.SKIPPED, in_file=Outcome.NOTE, by_worker=True),
    Check(
        lambda config, _: check_port(config.gateway),
        at_start=Outcome.ERROR,
        in_file=Outcome.SKIPPED,
    ),
)
"""The checks in the order in which they run. A worker of a file may run on another host, so what
the worker lacks here is an error only where it starts.
"""


def check_host(config: Config, environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` for the first reason why this host cannot run `config`. Each child checks
    again what it needs; an error found here is one line that is not mixed with the children's.
    """
    for check in CHECKS:
        if check.at_start is Outcome.SKIPPED:
            continue
        for problem in check.problems(config, environ) or ():
            if check.at_start is Outcome.ERROR:
                raise ConfigError(f"{problem}{check.remedy}")


def look_at_files(
    config: Config, environ: Mapping[str, str], refuse: Callable[[ConfigError], None]
) -> Iterator[str]:
    """One line for each missing file that is no error if its worker runs on another host. `refuse`
    gets each error: a missing file of the gateway, and any invalid file.
    """
    for check in CHECKS:
        if check.in_file is Outcome.SKIPPED:
            continue
        parts = [config]
        if check.by_worker:
            parts = [msgspec.structs.replace(config, workers=(one,)) for one in config.workers]
        for part in parts:
            try:
                yield from check.problems(part, environ) or ()
            except ConfigError as error:
                refuse(error)
