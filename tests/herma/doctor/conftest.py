from pathlib import Path

import pytest

from tests.herma.doctor.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root")
