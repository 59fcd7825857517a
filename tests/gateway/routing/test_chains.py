"""Comparison of digest chains."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.chains import common_prefix
from tests.fakes.fleet import chain


@given(shared=st.integers(0, 70), left=st.integers(0, 70), right=st.integers(0, 70))
def test_bisection_finds_the_whole_shared_prefix(shared: int, left: int, right: int) -> None:
    """Two chains share exactly the blocks before they part."""
    a = chain(("shared", shared), ("left", left))
    b = chain(("shared", shared), ("right", right))
    assert common_prefix(a, b) == common_prefix(b, a) == shared
    assert common_prefix(a, a) == len(a)
