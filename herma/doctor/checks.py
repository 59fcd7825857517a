"""All checks in their order, from the bottom of a host to its settings.

Owns the order. A check yields nothing about a fact that it cannot read. If a file cannot be read,
or vanishes during the check, the check ends with a warning; any other exception is a defect and is
raised.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from config import Config
from herma.doctor.certificates import check_certificate
from herma.doctor.driver import check_driver, check_preloaded
from herma.doctor.finding import Finding
from herma.doctor.gateways import check_gateways
from herma.doctor.gpu import check_gpu_processes
from herma.doctor.host import Host
from herma.doctor.memory import (
    check_control_group,
    check_gpu_limits,
    check_host_caches,
    check_huge_pages,
    check_page_cache,
    check_shared_memory,
)
from herma.doctor.model_files import check_models
from herma.doctor.network import check_clock, check_open_files, check_ports, check_proxies
from herma.doctor.python import check_python
from herma.doctor.ranks import check_ranks
from herma.doctor.settings import check_settings
from herma.doctor.shared_limits import check_shared_limits
from herma.doctor.starts import check_starts
from herma.doctor.state import check_state
from herma.doctor.units import check_units
from herma.doctor.workers import check_workers

OF_HOST: Final[tuple[Callable[[Host], Iterator[Finding]], ...]] = (
    check_units,
    check_driver,
    check_preloaded,
    check_gpu_limits,
    check_page_cache,
    check_shared_memory,
    check_gpu_processes,
    check_clock,
    check_open_files,
    check_proxies,
    check_python,
    check_state,
    check_gateways,
    check_workers,
)

OF_CONFIG: Final[tuple[Callable[[Host, Config], Iterator[Finding]], ...]] = (
    check_ports,
    check_certificate,
    check_control_group,
    check_host_caches,
    check_huge_pages,
    check_models,
    check_settings,
    check_ranks,
    check_starts,
    check_shared_limits,
)


def examine(host: Host, config: Config) -> list[Finding]:
    """The findings of all checks."""
    found = [finding for check in OF_HOST for finding in _whole(check(host))]
    return found + [finding for check in OF_CONFIG for finding in _whole(check(host, config))]


def _whole(findings: Iterable[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except OSError as error:
        why = "what else this check would have found is not known"
        what = f"{error.filename or 'a file'} cannot be read: {error.strerror or error}"
        yield Finding("warning", "doctor", what, why, "run herma doctor as a user that may read it")
