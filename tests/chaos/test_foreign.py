"""Chaos for engines that are not ours, each fault once. The default tier has a selection in
tests/e2e (`test_text_engines.py`, `test_foreign_engines.py`).
"""

from pathlib import Path

import pytest
import trio

from tests.chaos.foreign import FAULTS, Level, run_foreign


@pytest.mark.slow
@pytest.mark.parametrize("level", ["tokens", "text"])
async def test_what_clients_see_of_all_faults(tmp_path: Path, level: Level) -> None:
    """Clients see none of the faults at token level, and at text level one clear error after the
    first byte.
    """
    with trio.fail_after(240):
        seen = await run_foreign(tmp_path / "f", level, 1)
    assert seen.problems == []
    assert seen.num_faults == len(FAULTS)
    assert seen.num_answers > 8
    assert (seen.num_cut > 0) == (level == "text")
