"""Where the CPU seconds of a run of the tests go: `make test ARGS='-p tests.cpu_seconds'` prints
them by folder and by function.

A test's seconds are those of its process and of the processes that it has waited for, between its
reports; a fixture that several tests share is charged to the test that sets it up or tears it down.
Owns the measurement; must not know what the tests do.
"""

import resource
from collections import Counter
from collections.abc import Generator
from typing import Any, Final

import pytest

PROPERTY: Final = "cpu_s"
MOST_FUNCTIONS: Final = 60


def _used_s() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class CpuSeconds:
    """One process of a run. The one that was started by hand sums what all report."""

    def __init__(self) -> None:
        self._before = _used_s()
        self._seconds: Counter[str] = Counter()

    def pytest_collection_finish(self) -> None:
        """What comes now is the tests'."""
        self._before = _used_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Say in each report what was used since the last one."""
        report = yield
        now = _used_s()
        report.user_properties.append((PROPERTY, now - self._before))
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Sum by function."""
        properties: dict[str, Any] = dict(report.user_properties)
        self._seconds[report.nodeid.partition("[")[0]] += properties.get(PROPERTY, 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the seconds by folder, then the dearest functions."""
        folders: Counter[str] = Counter()
        for function, used in self._seconds.items():
            folders[function.partition("::")[0].rpartition("/")[0]] += used
        terminalreporter.section(f"CPU seconds: {self._seconds.total():.0f}, without collection")
        for counted in (folders.most_common(), self._seconds.most_common(MOST_FUNCTIONS)):
            for name, used in counted:
                terminalreporter.write_line(f"{used:8.1f} {name}")
            terminalreporter.write_line("")


def pytest_configure(config: pytest.Config) -> None:
    """In each process of the run."""
    config.pluginmanager.register(CpuSeconds(), "herma-cpu-seconds")
