"""The net for secrets catches them."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.transport import write_curve_pair
from tests.secrets_in_logs import SecretsInLogs

PLANTED = "sk-planted-secret"


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SecretsInLogs]:
    """One of its own, so that the true one does not see what is planted."""
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("HERMA_COPIED_OUTPUT", "")
    monkeypatch.setattr("protocol.transport.curve.make_pair", _make_pair())
    one = SecretsInLogs(tmp_path / "output")
    one.install()
    yield one
    logging.getLogger().removeHandler(one)


def _make_pair() -> object:
    from protocol.transport import curve

    return curve.make_pair


def _run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_childs_output_is_searched(net: SecretsInLogs, stream: str) -> None:
    """A child's output is searched once: what was searched is not searched again."""
    _run(f"import sys; print('task-local and key {PLANTED}.', file=sys.{stream})")
    assert net.caught() == [f"task-local and key {PLANTED}."]
    assert not net.caught()


def test_a_grandchild_and_its_log_are_searched(net: SecretsInLogs) -> None:
    """A process that a child has started, with a logger of its own."""
    inner = f"import logging; logging.error('with {PLANTED}')"
    _run(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])")
    assert len(net.caught()) == 1


def test_a_secret_half_of_a_pair_is_known(net: SecretsInLogs, tmp_path: Path) -> None:
    """The public half may be shown."""
    public = write_curve_pair(tmp_path / "pair")
    secret = next(
        word
        for word in (tmp_path / "pair").read_text().replace('"', " ").split()
        if len(word) == 40 and word != public
    )
    _run(f"print({public!r})")
    assert not net.caught()
    _run(f"print({secret!r})")
    assert len(net.caught()) == 1
