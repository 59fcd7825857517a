"""Names that tell their owner, and which of them may go."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from housekeeping.errors import ConfigError
from housekeeping.process_files import Owner, left_behind, owner_of, runtime_dir

OWNERS = st.builds(Owner, st.integers(1, 2**32), st.integers(1, 2**22), st.integers(1, 2**40))
STRANGE = ["herma-abc", "herma-1-2", "herma-1-2-3", "herma-1-2-3-", "x-1-2-3-y", "herma-1-2-3-a/b"]


@given(OWNERS, st.text("abc.-_0", min_size=1))
def test_a_name_tells_its_owner(owner: Owner, what: str) -> None:
    """A name is made of its owner, and the owner is read from the name."""
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


def test_a_folder_that_others_may_use_is_refused_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain mkdir makes one. What no chmod mends names none."""
    folder = tmp_path / "run dir"
    folder.mkdir()
    folder.chmod(0o755)
    monkeypatch.setenv("HERMA_RUNTIME_DIR", str(folder))
    with pytest.raises(ConfigError, match=r"mode 0700 .* has 0755: run `chmod 700 ") as refused:
        runtime_dir()
    command = str(refused.value).split("`")[1]
    subprocess.run(command, shell=True, check=True)
    assert runtime_dir() == folder

    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "link to nothing").symlink_to(tmp_path / "nothing")
    for odd in (tmp_path / "link", tmp_path / "link to nothing"):
        monkeypatch.setenv("HERMA_RUNTIME_DIR", str(odd))
        with pytest.raises(ConfigError, match="name another") as refused:
            runtime_dir()
        assert "chmod" not in str(refused.value)
