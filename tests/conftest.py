"""What every test shares: hypothesis profiles, threads that fit a small shared machine, drawn
tensors that stay the same, Triton's interpreter, which runs our kernels where no GPU is, and a net
for secrets in logs."""

import atexit
import gc
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import engine as search
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_state = TemporaryDirectory(prefix="herma-tests-")
atexit.register(_state.cleanup)
os.environ["XDG_STATE_HOME"] = _state.name
# Workers of one name are told apart by their folder: several runs share a machine.
os.environ["HERMA_RUNTIME_DIR"] = f"{_state.name}/run"

_PHASES = set(Phase) - {Phase.explain}
"""To explain a failure, hypothesis traces each line of each smaller example: many times as slow,
and of torch gigabytes."""
SHRINK_S = 30
"""How long `make test` looks for a smaller example; hypothesis itself looks for five minutes."""

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile(
    "test",
    deadline=None,
    derandomize=True,
    max_examples=15,
    phases=_PHASES,
    print_blob=True,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.register_profile(
    "fuzz",
    deadline=None,
    max_examples=20_000,
    phases=_PHASES,
    suppress_health_check=_SLOW_IS_FINE,
)
_profile = os.environ.get("HYPOTHESIS_PROFILE", "test")
settings.load_profile(_profile)
if _profile == "test":
    search.MAX_SHRINKING_SECONDS = SHRINK_S
    # Hypothesis draws constants of the loaded modules too. What a test draws would depend on the
    # tests that its process ran before, and so would how often it meets what it counts.
    providers._get_local_constants = Constants

_SEED = os.environ.get("HERMA_TEST_SEED", "")
"""Anything: other numbers for every test."""

pytest_plugins = ["tests.run_watch"]

SECRETS_IN_LOGS: pytest.StashKey[Any] = pytest.StashKey()


@pytest.fixture(autouse=True)
def _same_numbers(request: pytest.FixtureRequest) -> None:
    """Torch draws what this test drew before, whichever tests this process ran ahead of it."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(zlib.crc32(f"{_SEED}{request.node.nodeid}".encode()))


@pytest.fixture(autouse=True)
def _no_secret_in_logs(request: pytest.FixtureRequest) -> Iterator[None]:
    """No log of this test, and of the processes that it started, holds a secret."""
    yield
    caught = request.config.stash[SECRETS_IN_LOGS].caught()
    assert not caught, f"secrets in the logs: {caught}"


def pytest_configure(config: pytest.Config) -> None:
    """Before anything imports Triton: it decides at import how its functions will run. The
    collector looks at nothing while modules and tests are collected, two million objects: that
    takes 3.5 of 13 seconds.
    """
    gc.disable()
    from tests.secrets_in_logs import SecretsInLogs
    from tests.trust_store import read_once

    read_once()

    config.stash[SECRETS_IN_LOGS] = SecretsInLogs(Path(_state.name) / "output")
    config.stash[SECRETS_IN_LOGS].install()
    if config.getoption("markexpr") != "gpu":
        if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
            raise pytest.UsageError("a conftest.py imports Triton: too early for its interpreter")
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of the processes of xdist
        from tests.work_units import sort_by_length

        sort_by_length(items)


def pytest_collection_finish() -> None:
    """The garbage collector does not look at the collected tests later: each full collection would
    take a second.
    """
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `make test`, which says `--dist loadfile`."""
    from tests.work_units import WorkUnits

    return WorkUnits(config, log) if config.getvalue("dist") == "loadfile" else None
