"""`herma status`: the lines of gateways."""

from argparse import Namespace
from pathlib import Path

import msgspec
import pytest

from herma.commands import status as status_command
from herma.commands import worker as worker_command
from herma.commands.status import gateway_lines, run
from herma.processes import GatewayProcess, Supervisor
from protocol.control_messages import GatewayStatus, ModelCover, WorkerStatus
from protocol.errors import ConfigError

STATUS = GatewayStatus(
    1, "http://127.0.0.1:8080", "1", models=(ModelCover("m", 1, has_providers=True),), config="/f"
)


def test_a_gateway_is_one_line() -> None:
    line = "gateway http://127.0.0.1:8080/v1 (pid 1): m by 1 ready worker and providers"
    assert gateway_lines(1, STATUS) == line
    assert "does not answer" in gateway_lines(1, None)


def test_what_does_not_work_stands_below_the_gateway() -> None:
    stuck = msgspec.structs.replace(STATUS, troubles=("cannot write the ledger /l: locked",))
    assert gateway_lines(1, stuck).splitlines()[1:] == ["  cannot write the ledger /l: locked"]


@pytest.mark.parametrize(
    ("cover", "said"),
    [
        (ModelCover("m", 2, has_providers=False), "m by 2 ready workers"),
        (ModelCover("m", 0, has_providers=True), "m by providers alone"),
        (ModelCover("m", 0, has_providers=False), "m by no ready worker"),
    ],
)
def test_who_serves_a_model_is_said(cover: ModelCover, said: str) -> None:
    assert gateway_lines(1, msgspec.structs.replace(STATUS, models=(cover,))).endswith(f": {said}")


def test_the_gateway_stands_before_the_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that has given up is status 1; a gateway alone says that no worker is here."""
    worker = WorkerStatus("w", 2, "m", "m", "stopped", 1, 0, config="/f")
    workers = [Supervisor(Path("w"), 2, worker)]
    gateways = [GatewayProcess(Path("g"), 1, STATUS)]
    monkeypatch.setattr(status_command, "gateways", lambda: gateways)
    for module in (status_command, worker_command):
        monkeypatch.setattr(module, "supervisors", lambda: workers)
    arguments = Namespace(config=Path("/f"), all=False)
    assert run(arguments) == 1
    first, head, row = capsys.readouterr().out.splitlines()
    assert first.startswith("gateway http")
    assert head.startswith("NAME")
    assert row.startswith("w ")
    workers.clear()
    assert run(arguments) == 0
    assert capsys.readouterr().out.endswith("no worker runs here\n")
    gateways.clear()
    with pytest.raises(ConfigError, match="no worker runs"):
        run(arguments)
