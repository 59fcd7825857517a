"""Names that tell their owner, and which of them may go."""

from hypothesis import given
from hypothesis import strategies as st

from housekeeping.leftovers import Owner, left_behind, owner_of

OWNERS = st.builds(Owner, st.integers(1, 2**32), st.integers(1, 2**22), st.integers(1, 2**40))
STRANGE = ["herma-abc", "herma-1-2", "herma-1-2-3", "herma-1-2-3-", "x-1-2-3-y", "herma-1-2-3-a/b"]


@given(OWNERS, st.text("abc.-_0", min_size=1))
def test_a_name_tells_its_owner(owner: Owner, what: str) -> None:
    """Both ways."""
    assert owner_of(owner.name(what)) == owner


@given(st.sets(OWNERS), st.sets(OWNERS), st.sampled_from([1, 2]))
def test_only_what_dead_processes_own_goes(
    dead: set[Owner], living: set[Owner], namespace: int
) -> None:
    """Never a living one's, another namespace's, or a name that is none of ours."""
    names = [owner.name("x") for owner in (*dead, *living)]
    found = left_behind([*names, *STRANGE], namespace, living)
    assert sorted(found) == sorted(
        owner.name("x") for owner in dead - living if owner.namespace == namespace
    )


def test_a_number_given_again_is_another_process() -> None:
    """The start time tells them apart."""
    old, new = Owner(1, 77, 1000), Owner(1, 77, 5000)
    assert left_behind([old.name("x"), new.name("x")], 1, {new}) == [old.name("x")]
