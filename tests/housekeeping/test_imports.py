"""The garbage collector pauses for imports, and goes on as it was."""

import gc
from collections.abc import Iterator

import pytest

from housekeeping.imports import uncollected


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    gc.enable()


def test_it_goes_on_behind_the_block() -> None:
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_behind_an_import_that_fails() -> None:
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()


def test_a_block_within_a_block_does_not_end_the_pause() -> None:
    with uncollected():
        with uncollected():
            pass
        assert not gc.isenabled()


def test_who_has_stopped_it_keeps_it_stopped() -> None:
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()
