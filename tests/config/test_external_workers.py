"""Workers whose engine is somebody else's: which keys belong together."""

import pytest

from config import LaunchConfig, parse_config
from protocol.errors import ConfigError

WORKER = """
[[models]]
name = "m"
[[workers]]
name = "w"
model = "/models/m"
"""


def test_a_launched_engine_is_read_word_by_word() -> None:
    """Quotes of JSON flags arrive as they are written."""
    text = (
        WORKER
        + """
engine = "vllm"
url = "http://127.0.0.1:8000"
[workers.launch]
argv = ["vllm", "serve", "--speculative-config", '{"method":"mtp"}']
env = { CUDA_VISIBLE_DEVICES = "0" }
stop = ["docker", "rm", "-f", "v"]
"""
    )
    (worker,) = parse_config(text, "f").workers
    assert worker.launch == LaunchConfig(
        argv=("vllm", "serve", "--speculative-config", '{"method":"mtp"}'),
        env={"CUDA_VISIBLE_DEVICES": "0"},
        stop=("docker", "rm", "-f", "v"),
    )


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('engine = "vllm"', "needs `url`"),
        ('engine = "vlm"', 'did you mean "vllm"'),
        ('engine = "sglang"\nurl = "127.0.0.1:30000"', "http://HOST:PORT"),
        ('engine = "sglang"\nurl = "http://127.0.0.1:30000/v1"', "http://HOST:PORT"),
        ('url = "http://127.0.0.1:8000"', "`url` is only for engine"),
        ('launch = { argv = ["x"] }', "`launch` is only for engine"),
        ('engine = "llama-cpp"\nurl = "unix:/l"\nlaunch = { argv = "llama-server -m x" }', "list"),
        ('engine = "llama-cpp"\nurl = "unix:/l"\nlaunch = { argv = [] }', "argv"),
        ('engine = "llama-cpp"\nurl = "unix:/l"\nlaunch = { cmd = ["x"] }', "unknown key `cmd`"),
    ],
)
def test_a_mistake_is_one_line(keys: str, said: str) -> None:
    """It names the key and what is wanted."""
    with pytest.raises(ConfigError) as raised:
        parse_config(WORKER + keys, "f")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
