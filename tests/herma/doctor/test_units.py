"""Units that start what is not there."""

import pytest

from config import Config
from herma.doctor import Finding, examine
from tests.herma.doctor.machine import Machine

UNIT = "/etc/systemd/system/engine.service"


def found(machine: Machine) -> list[Finding]:
    return examine(machine.host, Config())


def test_a_healthy_unit_is_no_finding(machine: Machine) -> None:
    machine.write("/opt/start.sh", mode=0o755)
    machine.write("/usr/bin/bash", mode=0o755)
    machine.write(UNIT, "[Service]\nExecStart=-/usr/bin/bash \\\n  /opt/start.sh --port 80\n")
    machine.answer(
        "systemctl show engine.service -pActiveState -pExecMainStatus -pNRestarts -pResult",
        "ActiveState=active\nExecMainStatus=0\nNRestarts=0\nResult=success\n",
    )
    assert found(machine) == []


@pytest.mark.parametrize("line", ["/opt/start.sh --port 80", "@/usr/bin/bash /opt/start.sh"])
def test_a_script_that_is_gone(machine: Machine, line: str) -> None:
    machine.write("/usr/bin/bash", mode=0o755)
    machine.write(UNIT, f"[Service]\nExecStart={line}\n")
    (one,) = found(machine)
    assert one.level == "error"
    assert "/opt/start.sh, which does not exist" in one.what
    assert "127" in one.why
    assert UNIT in one.remedy


def test_a_program_that_is_not_executable(machine: Machine) -> None:
    machine.write("/opt/start.sh")
    machine.write(UNIT, "[Service]\nExecStart=/opt/start.sh\n")
    (one,) = found(machine)
    assert one.remedy == "chmod +x /opt/start.sh"


EXEC = "[Service]\nExecStart=/usr/bin/docker exec -i vllm /opt/start.sh\n"


def test_a_script_that_the_container_lacks(machine: Machine) -> None:
    machine.write(UNIT, EXEC)
    machine.answer("docker diff vllm", "C /tmp\n")
    machine.answer("docker exec vllm test -e /opt/start.sh", "", status=1)
    (one,) = found(machine)
    assert "/opt/start.sh in vllm, which does not exist" in one.what
    assert "image of vllm" in one.remedy


def test_a_script_that_only_the_writable_layer_has(machine: Machine) -> None:
    """The next container is made from the image and lacks it."""
    machine.write(UNIT, EXEC)
    machine.answer("docker diff vllm", "C /opt\nA /opt/start.sh\n")
    machine.answer("docker exec vllm test -e /opt/start.sh", "")
    (one,) = found(machine)
    assert one.level == "warning"
    assert "writable layer of vllm" in one.what
    assert "-v /opt/start.sh" in one.remedy


def test_a_container_that_is_gone(machine: Machine) -> None:
    machine.write(UNIT, EXEC)
    machine.answer("docker diff vllm", "no such container", status=1)
    (one,) = found(machine)
    assert "cannot be examined" in one.what


@pytest.mark.parametrize(("state", "level"), [("failed", "error"), ("active", "warning")])
def test_the_end_of_the_last_start(machine: Machine, state: str, level: str) -> None:
    """Restarted every 30 s with status 127, all day."""
    machine.write("/opt/start.sh", mode=0o755)
    machine.write(UNIT, "[Service]\nExecStart=/opt/start.sh\n")
    machine.answer(
        "systemctl show engine.service -pActiveState -pExecMainStatus -pNRestarts -pResult",
        f"ActiveState={state}\nExecMainStatus=127\nNRestarts=1204\nResult=exit-code\n",
    )
    (one,) = found(machine)
    assert one.level == level
    assert "status 127 (1204 restarts)" in one.what
    assert one.why == "the program was not found"
    assert "journalctl -u engine.service" in one.remedy
