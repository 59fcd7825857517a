"""`herma config check [FILE]`, `herma config show [FILE]` and `herma config reference`.

Owns the summary for people, and the list of the values that took effect. Secrets are looked up by
`check` but never shown.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from config import (
    EXTERNAL_ENGINES,
    FILE_NAME,
    INDEX_DRAFTERS,
    TEXT_ENGINE,
    Config,
    LimitsConfig,
    Place,
    PriceConfig,
    WorkerConfig,
    find_mistakes,
    found_config,
    line_of,
    load_config,
    read_text,
    reference,
)
from herma import EXIT_EXPLAINED
from herma.checks import check_aliases, look_at_files, missing_secrets, unserved_models
from herma.effective_config import effective_lines
from protocol.errors import ConfigError
from workers.turns import TurnRecord, engine_id, overfull, read_records, records_dir, together

_NAMED: Final = re.compile(r"\[([\w.]+)\] (\w+)|(worker|model|provider|host|alerts) `([^`]+)`")
"""How lines about this host begin."""


def run(arguments: argparse.Namespace) -> int:
    """Print what the file sets up, or the values that took effect. Returns the status: 2 for a file
    with mistakes, each of them printed. Raises `ConfigError` for a file that cannot be read.
    """
    if arguments.action == "reference":
        print(reference(), end="")
        return 0
    path: Path | None = arguments.file or found_config(Path.cwd(), os.environ)
    if path is None:
        raise ConfigError(f"there is no {FILE_NAME} here: name a file, or write one: herma init")
    if mistakes := _mistakes(path):
        print(*(f"herma: {line}" for line in mistakes), sep="\n", file=sys.stderr)
        return EXIT_EXPLAINED
    config = load_config(path)
    if arguments.action == "show":
        print("\n".join(effective_lines(config, path)))
        return 0
    return _check(path, config, has_secrets=not arguments.no_secrets)


def _mistakes(path: Path) -> list[str]:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError):
        return []  # `load_config` says why
    return find_mistakes(text, str(path))


def _check(path: Path, config: Config, *, has_secrets: bool) -> int:
    """`has_secrets`: this is the host whose environment has the providers' keys."""
    errors = list(missing_secrets(config, os.environ)) if has_secrets else []
    try:
        check_aliases(config)
    except ConfigError as error:
        errors.append(str(error))
    measured = measured_workers(config, path)
    errors += overfull(measured)
    # These are no mistakes: workers may run on other hosts, or be set up elsewhere.
    notes = list(look_at_files(config, os.environ, lambda error: errors.append(str(error))))
    if errors:
        text = read_text(path)
        raise ConfigError(
            "\n".join(f"{path}{_line(one, config, text)}: {one}" for one in dict.fromkeys(errors))
        )
    notes += [*unserved_models(config), *_unbounded(config)]
    notes += _unknown_windows(config)
    notes += together(measured)
    print(_summary(path, config))
    for note in notes:
        print(f"  note      {note}")
    return 0


def _line(problem: str, config: Config, text: str) -> str:
    """The line of the table or key that a problem of this host begins with, as `:12`; "" if the
    file has none.
    """
    if (named := _NAMED.match(problem)) is None:
        return ""
    table, key, kind, name = named.groups()
    place: Place = (*(table or "").split("."), key)
    if kind is not None:
        tables = f"{kind.removesuffix('s')}s"
        if tables == "providers":
            place = (tables, name)
        else:
            names = [one.name for one in getattr(config, tables)]
            place = (tables, names.index(name)) if name in names else ()
    line = line_of(place, text)
    return "" if line is None else f":{line}"


def measured_workers(config: Config, path: Path) -> list[TurnRecord]:
    """What earlier starts on this host have measured of the file's workers as they are now."""
    try:
        folder = records_dir(os.environ)
    except ConfigError:
        return []
    found: list[TurnRecord] = []
    for record in read_records(folder, str(path.absolute())):
        worker = config.worker(record.worker)
        if worker is not None and engine_id(worker) == record.engine:
            found.append(msgspec.structs.replace(record, residency=worker.residency))
    return found


def _summary(path: Path, config: Config) -> str:
    gateway = config.gateway
    scheme = "http" if gateway.tls_certificate_file is None else "https"
    lines = [f"{path}: ok", f"  gateway   {scheme}://{gateway.host}:{gateway.port}/v1"]
    if gateway.processes > 1:
        lines[-1] += f" ({gateway.processes} processes)"
    for model in config.models:
        chain = ", ".join(f"{target.provider}/{target.model}" for target in model.fallback)
        names = " ".join((model.name, *model.aliases))
        lines.append(f"  model     {names} ({model.profile})" + (f" -> {chain}" if chain else ""))
    for worker in config.workers:
        limits = _foreign(worker) if worker.engine in EXTERNAL_ENGINES else _own(worker)
        lines.append(f"  worker    {worker.name}: {worker.model} as {worker.serves} ({limits})")
    currency = config.ledger.currency
    for name, provider in config.providers.items():
        costs = f"{_price(provider.price, currency)}{_limits(provider.limits, currency)}"
        lines.append(f"  provider  {name}: {provider.base_url} ({costs})")
    for key in config.keys:
        admin = " (admin)" if key.admin else ""
        lines.append(f"  key       {key.name}{admin}{_limits(key.limits, currency)}")
    return "\n".join(lines)


def _own(worker: WorkerConfig) -> str:
    window = worker.context_length or f"at most {worker.max_context}"
    gap = "" if worker.max_gap_ms is None else f", gaps of {worker.max_gap_ms:g} ms"
    limits = f"max_seqs {worker.max_seqs or 'by memory'}, token_budget {worker.token_budget}{gap}"
    return f"{limits}, context {window}{_drafts(worker)}"


def _foreign(worker: WorkerConfig) -> str:
    """A line for an external engine, which plans its own steps."""
    limits = {"max_seqs": worker.max_seqs, "context": worker.context_length}
    named = [f"{name} {value}" for name, value in limits.items() if value is not None]
    how = "attached" if worker.launch is None else f"launched by {worker.launch.argv[0]}"
    if worker.rank:
        return f"{worker.engine}, rank {worker.rank} of {worker.ranks}, {how}"
    return ", ".join((f"{worker.engine} at {worker.url}, {how}", *named))


def _drafts(worker: WorkerConfig) -> str:
    """A line about drafts. Only the worker's host knows whether a checkpoint has an MTP head."""
    if worker.drafting is None:
        return ""
    name = worker.drafting.drafter
    has_choice = worker.speculation == "auto" and name in INDEX_DRAFTERS
    return f", drafts by {f'an MTP head, else {name}' if has_choice else name}"


def _price(price: PriceConfig | None, currency: str) -> str:
    if price is None:
        return "price unknown"
    cached = price.input if price.cached_input is None else price.cached_input
    one = "" if price.request is None else f", {price.request:g} {currency} a request"
    text = f"{price.input:g} in, {cached:g} cached, {price.output:g} out {currency} per million"
    return text + one


def _limits(limits: LimitsConfig, currency: str) -> str:
    amounts = ((limits.daily, "day"), (limits.monthly, "month"))
    return "".join(
        f", at most {amount:g} {currency} a {span}"
        for amount, span in amounts
        if amount is not None
    )


def _unbounded(config: Config) -> Iterator[str]:
    """Lines for providers whose limit makes them refuse requests without a cap on their output."""
    a_key_is_limited = any(key.limits.any for key in config.keys)
    for name, provider in config.providers.items():
        if provider.max_output_tokens is None and (a_key_is_limited or provider.limits.any):
            yield (
                f"a limit applies to provider {name}, which has no max_output_tokens: requests "
                "without max_tokens are refused, except for models with a bound of their own"
            )


def _unknown_windows(config: Config) -> Iterator[str]:
    """Lines for workers whose start needs a server that says its window."""
    for worker in config.workers:
        if worker.engine == TEXT_ENGINE and worker.context_length is None:
            yield (
                f"worker `{worker.name}` has no context_length: it starts only if the server at "
                f"{worker.url} says how long its window is"
            )
