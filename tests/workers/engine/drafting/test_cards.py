"""What drafters launch compiles for cards that are not there, in steps of true sizes."""

import json
from pathlib import Path

import pytest

from tests.fakes.uninterpreted import run_uninterpreted

SHARED_KIB = {90: 227, 120: 99}
"""What a program may take: NVIDIA's table of compute capabilities."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dflash", "mtp"])
@pytest.mark.parametrize("arch", SHARED_KIB)
def test_drafts_compile_for_a_card(kind: str, arch: int, tmp_path: Path) -> None:
    """Drafts compile for a card in 8 bits, in graphs and without, as the dry run of a start finds
    it; a minute each.
    """
    module = "tests.workers.engine.drafting.card_checks"
    found = json.loads(run_uninterpreted(module, str(arch), kind, str(tmp_path), cache=tmp_path))
    assert not found["errors"]
    assert "_tiles_kernel" in found["names"]
    assert ("_context_kernel" in found["names"]) == (kind == "dflash")
    assert found["most_bytes"] <= SHARED_KIB[arch] * 1024
