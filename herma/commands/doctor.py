"""`herma doctor`: examine this host, print the findings, apply safe repairs.

Owns the report, the exit status and the repairs.
"""

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import msgspec

from config import Config, LedgerConfig, load_config, secret_of
from herma.doctor import OF_CONFIG, OF_HOST, Finding, Fix, examine, this_host, worst
from herma.processes import gateways, supervisors
from protocol.errors import ConfigError

EXIT_ERRORS: Final = 1

_MARKS: Final = {"error": "✗", "warning": "!", "note": "·"}


def run(arguments: argparse.Namespace) -> int:
    """Print the findings. Returns 1 if one of them is an error, else 0. Raises `ConfigError`."""
    if arguments.prefixes:
        from herma.prefixes import show_prefixes

        return show_prefixes(arguments)
    config = load_config(arguments.config) if arguments.config is not None else Config()
    host = dataclasses.replace(
        this_host(arguments.config),
        gateways=gateways,
        ask_shared_limits=ask_shared_limits,
        workers=supervisors,
    )
    findings = examine(host, config)
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(findings, enc_hook=str).decode() + "\n")
    else:
        print("\n".join([*report(findings), *looked_at(arguments.config)]))
    if arguments.fix:
        mend(findings)
    return EXIT_ERRORS if worst(findings) == "error" else 0


def ask_shared_limits(ledger: LedgerConfig) -> str | None:
    """The reason why the server of the shared limits does not answer; None if it does. Takes at
    most a second.
    """
    from gateway.store import CommonLimits, StoreUnreachable

    try:
        password = secret_of("[ledger] shared", ledger.shared_password_env, None, os.environ)
        limits = CommonLimits(ledger.shared or "", password, ledger.currency, "doctor")
        with closing(limits):
            limits.is_known()
    except (ConfigError, StoreUnreachable) as error:
        return str(error)
    return None


def report(findings: Sequence[Finding]) -> list[str]:
    """Three lines for each finding, the worst first, and a line of counts."""
    lines: list[str] = []
    for level, mark in _MARKS.items():
        for one in findings:
            if one.level == level:
                lines += [
                    f"{mark} {one.check}: {one.what}",
                    f"    why     {one.why}",
                    f"    remedy  {one.remedy}",
                ]
    counts = {level: sum(one.level == level for one in findings) for level in _MARKS}
    words = [f"{n} {level}{'s' * (n != 1)}" for level, n in counts.items() if n]
    return [*lines, ", ".join(words) or "all is well: nothing found"]


def looked_at(config_path: Path | None) -> Iterator[str]:
    """The names of the examined things, for the end of the report."""
    names = (check.__name__.removeprefix("check_").replace("_", " ") for check in OF_HOST)
    yield f"looked at this host: {', '.join(names)}"
    names = (check.__name__.removeprefix("check_").replace("_", " ") for check in OF_CONFIG)
    if config_path is None:
        yield f"looked at the defaults: {', '.join(names)}; --config FILE looks at those of a file"
    else:
        yield f"looked at {config_path}: {', '.join(names)}"


def mend(findings: Sequence[Finding]) -> None:
    """Carry out the safe repairs and print the result of each."""
    for one in findings:
        if one.fix is None:
            continue
        try:
            num_done = apply(one.fix)
        except OSError as error:
            print(f"not mended: {one.what}: {error.strerror} ({error.filename})")
        else:
            print(f"mended: {one.what} ({num_done} done)")


def apply(fix: Fix) -> int:
    """Carry out one repair. Returns the number of files written or removed. Raises `OSError`."""
    num_done = 0
    if fix.write is not None:
        path, text = fix.write
        path.write_text(text, encoding="ascii")
        num_done += 1
    for path in fix.remove:
        with suppress(FileNotFoundError):
            path.unlink()
            num_done += 1
    return num_done
