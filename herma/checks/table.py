"""The checks of a configuration on this host, in one list.

Owns their order, and what a start and `herma config check` do about the problems of each.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from config import Config
from herma.checks.files import drafters_beside_models, gateway_files, worker_files
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

_Problems: TypeAlias = Callable[[Config, Mapping[str, str]], Iterator[str]]


class Outcome(Enum):
    """What is done about the problems of a check. A `ConfigError` always ends the command."""

    SKIPPED = "skipped"
    """The check is not made."""
    NOTE = "note"
    """A line for people who ask; a start says nothing."""
    ERROR = "error"
    """The first problem ends the command."""


class Check(NamedTuple):
    """`problems` yields a line for each. `remedy`: what an error of a start says behind it."""

    problems: _Problems
    at_start: Outcome
    in_file: Outcome
    remedy: str = ""


def _raises(check: Callable[[Config], None]) -> _Problems:
    """A check that only raises."""

    def problems(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
        del environ
        check(config)
        yield from ()

    return problems


def _providers(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    check_providers(config, environ)
    yield from ()


def _missing_models(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    del environ
    return missing_models(config)


def _missing_drafters(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    del environ
    return (problem for _, problem in missing_drafters(config))


def _model_texts(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    del environ
    return check_model_texts(config)


CHECKS: Final = (
    # `herma config check` asks for secrets and aliases itself: not without the environment.
    Check(_providers, at_start=Outcome.ERROR, in_file=Outcome.SKIPPED),
    Check(
        _raises(lambda config: check_engine_extra(config.workers)),
        at_start=Outcome.ERROR,
        in_file=Outcome.SKIPPED,
    ),
    Check(gateway_files, at_start=Outcome.SKIPPED, in_file=Outcome.NOTE),
    Check(
        _missing_models,
        at_start=Outcome.ERROR,
        in_file=Outcome.NOTE,
        remedy="; correct its `model`",
    ),
    Check(
        _missing_drafters,
        at_start=Outcome.ERROR,
        in_file=Outcome.SKIPPED,
        remedy="; correct its `speculation`",
    ),
    Check(_raises(check_aliases), at_start=Outcome.ERROR, in_file=Outcome.SKIPPED),
    Check(_model_texts, at_start=Outcome.NOTE, in_file=Outcome.NOTE),
    Check(drafters_beside_models, at_start=Outcome.SKIPPED, in_file=Outcome.NOTE),
    Check(_raises(check_scripts), at_start=Outcome.ERROR, in_file=Outcome.SKIPPED),
    Check(launch_problems, at_start=Outcome.ERROR, in_file=Outcome.NOTE),
    Check(worker_files, at_start=Outcome.SKIPPED, in_file=Outcome.NOTE),
    Check(
        _raises(lambda config: check_port(config.gateway)),
        at_start=Outcome.ERROR,
        in_file=Outcome.SKIPPED,
    ),
)
"""In the order in which problems are found. A worker of a file may run on another host, so what it
lacks here is an error only where it starts.
"""


def check_host(config: Config, environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` for the first reason why this host cannot run `config`. Each child checks
    again what it needs; an error found here is one line that is not mixed with the children's.
    """
    for check in CHECKS:
        if check.at_start is Outcome.SKIPPED:
            continue
        for problem in check.problems(config, environ):
            if check.at_start is Outcome.ERROR:
                raise ConfigError(f"{problem}{check.remedy}")


def look_at_files(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """One line for each missing file that is no error if its worker runs on another host.

    Raises `ConfigError` for a missing file of the gateway and for any invalid file.
    """
    for check in CHECKS:
        if check.in_file is not Outcome.SKIPPED:
            yield from check.problems(config, environ)
