"""Workers whose engine is somebody else's: which keys belong together."""

import pytest

import herma.cli
from config import ENGINE_KINDS, LaunchConfig, parse_config
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


def test_a_text_engine_names_the_model_as_it_likes() -> None:
    """The name is the server's own: neither a directory nor a hub id."""
    text = WORKER.replace("/models/m", "qwen3:8b") + 'engine = "openai"\nurl = "http://h:1"\n'
    (worker,) = parse_config(text + 'refused_fields = ["user"]', "f").workers
    assert (worker.model, worker.refused_fields) == ("qwen3:8b", ("user",))


def test_the_command_names_all_kinds() -> None:
    """Its help is written without the configuration's types."""
    assert herma.cli.ENGINE_KINDS == ENGINE_KINDS


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('engine = "vllm"', "needs `url`"),
        ('engine = "vlm"', 'did you mean "vllm"'),
        ('engine = "sglang"\nurl = "127.0.0.1:30000"', "http://HOST:PORT"),
        ('engine = "sglang"\nurl = "http://127.0.0.1:30000/v1"', "http://HOST:PORT"),
        ('url = "http://127.0.0.1:8000"', "`url` is only for engine"),
        ('engine = "openai"', "needs `url`"),
        ('engine = "vllm"\nurl = "unix:/v"\nrefused_fields = ["x"]', "`refused_fields` is only"),
        ('engine = "openai"\nurl = "unix:/v"\nkv_events = { url = "tcp://h:1" }', "`kv_events` is"),
        ('engine = "vllm"\nurl = "unix:/v"\nkv_events = { url = "h:1" }', "tcp://HOST:PORT"),
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
