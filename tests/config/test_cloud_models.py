"""Models of a file that providers alone serve."""

import pytest

from config import parse_config, providers_alone

TEXT = """
[gateway]
{bind}
[[models]]
name = "local"
fallback = [{{ provider = "cloud", model = "m" }}]
[[models]]
name = "far"
fallback = [{{ provider = "cloud", model = "m" }}]
[[models]]
name = "never"
cloud = "never"
[[models]]
name = "nobody"
[[workers]]
name = "w"
model = "builtin:herma-tiny"
serves = "local"
[providers.cloud]
base_url = "https://cloud.test/v1"
"""


@pytest.mark.parametrize(
    ("bind", "alone"),
    [
        ("", {"far"}),
        ('worker_bind = "ipc:///run/herma/workers"', {"far"}),
        ('worker_bind = "tcp://127.0.0.1:8090"', set()),
    ],
)
def test_a_model_without_a_worker_in_the_file(bind: str, alone: set[str]) -> None:
    """A model without a worker in the file is noted unless workers whose files lie elsewhere may
    dial in at a TCP address.
    """
    assert providers_alone(parse_config(TEXT.format(bind=bind), "f")) == alone
