"""What a restart takes over from a file that has changed."""

import msgspec
import pytest

from config import WorkerConfig, builtin_config
from protocol.errors import ConfigError
from workers.supervisor.identity import changed_keys

(WORKER,) = builtin_config().workers


def _with(**keys: object) -> WorkerConfig:
    return msgspec.structs.replace(WORKER, **keys)


def test_what_is_the_engine_s_may_change() -> None:
    """And is named, in the order of the file's description."""
    assert changed_keys(WORKER, WORKER) == ()
    assert changed_keys(WORKER, _with(max_seqs=3, model="/m")) == ("model", "max_seqs")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"gateways": ("ipc:///x",), "model": "/m"}, "gateways of worker `local` is another"),
        ({"serves": "x", "drain_s": 1.0}, "serves, drain_s of worker `local` are another"),
    ],
)
def test_what_gateways_and_parents_count_with_may_not(keys: dict[str, object], says: str) -> None:
    """One line that names the keys and the way."""
    with pytest.raises(ConfigError, match=f"{says} now, and only a new process takes that"):
        changed_keys(WORKER, _with(**keys))
