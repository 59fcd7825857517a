"""One client at its worst does not hurt a light one; `two_clients.py` has the loads and bounds."""

import pytest

from tests.e2e.two_clients import measure


@pytest.mark.slow
def test_one_client_at_its_worst_does_not_hurt_a_light_one() -> None:
    assert measure() == []
