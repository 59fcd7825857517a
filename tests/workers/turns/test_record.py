"""The record of a worker's turns."""

from pathlib import Path

import pytest

from workers.turns.record import read_record


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"worker": 1}', b'{"worker": "\xff"}'])
def test_a_record_that_cannot_be_read_counts_as_none(tmp_path: Path, content: bytes | None) -> None:
    """Then the worker is measured again, whatever is in the file."""
    path = tmp_path / "record.json"
    if content is not None:
        path.write_bytes(content)
    assert read_record(path) is None
