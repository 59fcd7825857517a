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
GROUP = 'engine = "vllm"\nlaunch = { argv = ["x"] }\ngroup = "g"\n'


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
    """The help of the command names all kinds, and is written without the configuration's types."""
    assert herma.cli.ENGINE_KINDS == ENGINE_KINDS


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('engine = "vllm"', "needs `url`"),
        ('engine = "vlm"', 'did you mean "vllm"'),
        ('engine = "sglang"\nurl = "127.0.0.1:30000"', "http://HOST:PORT"),
        ('engine = "sglang"\nurl = "http://127.0.0.1:30000/v2"', "http://HOST:PORT"),
        ('url = "http://127.0.0.1:8000"', "`url` is only for engine"),
        ('engine = "openai"', "needs `url`"),
        ('engine = "vllm"\nurl = "unix:/v"\nrefused_fields = ["x"]', "`refused_fields` is only"),
        ('engine = "openai"\nurl = "unix:/v"\nkv_events = { url = "tcp://h:1" }', "`kv_events` is"),
        ('engine = "vllm"\nurl = "unix:/v"\nkv_events = { url = "h:1" }', "tcp://HOST:PORT"),
        ('launch = { argv = ["x"] }', "`launch` is only for engine"),
        *(
            (f'engine = "vllm"\nurl = "unix:/v"\n{key}', '` is for engine = "native", not "vllm"')
            for key in (
                'speculation = "auto"',
                'quantization = "fp8"',
                'kv_dtype = "fp8"',
                "snapshots = 4",
                "host_bytes = 1_000_000_000",
                "threads = 4",
                'dtype = "float16"',
            )
        ),
        ('engine = "vllm"\nurl = "unix:/v"\nmax_gap_ms = 25.0', "`max_gap_ms` is for our own"),
        ("step_ms = 20.0", '`step_ms` is for engine = "synthetic", not "native"'),
        ("ranks = 4", "`ranks` is only for workers of a `group`"),
        ('engine = "llama-cpp"\nurl = "unix:/l"\nlaunch = { argv = "llama-server -m x" }', "list"),
        ('engine = "llama-cpp"\nurl = "unix:/l"\nlaunch = { argv = [] }', "argv"),
        ('engine = "llama-cpp"\nurl = "unix:/l"\nlaunch = { cmd = ["x"] }', "unknown key `cmd`"),
        ('prepare = ["clear-sm"]', 'did you mean "clear-shm"'),
        ("rank = 1", "only for workers of a `group`"),
        ('group = "g"', "started by `launch`"),
        (GROUP + 'url = "unix:/l"', "needs `group_address`"),
        (GROUP + 'rank = 2\ngroup_address = "tcp://127.0.0.1:8095"', "rank 2 is none of 2 ranks"),
        (GROUP + 'rank = 1\ngroup_address = "ipc:///g"', "must be tcp://HOST:PORT"),
        (GROUP + 'rank = 1\ngroup_address = "tcp://10.0.0.1:8095"', "and group_server_key"),
        (GROUP + 'url = "unix:/l"\ngroup_address = "tcp://10.0.0.1:8095"', "group_keys"),
    ],
)
def test_a_mistake_is_one_line(keys: str, said: str) -> None:
    """The line of a mistake names the key and what is wanted."""
    with pytest.raises(ConfigError) as raised:
        parse_config(WORKER + keys, "f")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("first", "second", "is_mistake"),
    [
        ('device = "cuda:0"\nowns_gpu = true', 'device = "cuda:1"\nowns_gpu = true', False),
        ('device = "cuda:0"\nowns_gpu = true', 'device = "cuda:0"', True),
        ("owns_gpu = true", 'device = "cuda"', True),
        ("owns_gpu = true", 'device = "cpu"', False),
        ("tensor_parallel = 2\nowns_gpu = true", 'device = "cuda:1"', True),
        ('tensor_parallel = 2\ndevices = ["cuda:2", "cuda:3"]\nowns_gpu = true', "", False),
        ("owns_gpu = true", 'engine = "vllm"\nurl = "unix:/l"', False),
    ],
)
def test_a_card_of_ones_own_is_no_other_workers(first: str, second: str, is_mistake: bool) -> None:
    """Between two starts all that holds its memory is ended."""
    other = '\n[[workers]]\nname = "v"\nmodel = "/models/m"\n'
    text = f"{WORKER}{first}{other}{second}"
    if not is_mistake:
        assert len(parse_config(text, "f").workers) == 2
        return
    with pytest.raises(ConfigError, match="which `v` uses too"):
        parse_config(text, "f")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ('device = "cuda:0"\nlaunch = { argv = ["vllm"] }', None),
        ('device = "cpu"\nlaunch = { argv = ["vllm"] }', None),
        ('launch = { argv = ["vllm"] }', "its `device` is not named"),
        ('device = "cuda:0"', "its engine is started by others"),
    ],
)
def test_an_engine_that_takes_turns_is_launched_and_its_device_named(
    keys: str, why: str | None
) -> None:
    """An engine that takes turns must be launched, with its device named. Without a device the
    host's memory was measured, and two engines of one card were resident together.
    """
    text = (
        '[[models]]\nname = "m"\nresidency = "on-demand"\n[[workers]]\nname = "w"\nmodel = "/m"\n'
        f'engine = "vllm"\nurl = "http://127.0.0.1:8000"\n{keys}\n'
    )
    if why is None:
        assert parse_config(text, "x").workers[0].residency == "on-demand"
        return
    with pytest.raises(ConfigError, match=why):
        parse_config(text, "x")


@pytest.mark.parametrize(
    ("device", "is_refused"),
    [("cuda:0", False), ("cuda:1", True), ("cuda:2", False), ("auto", False), ("cpu", False)],
)
@pytest.mark.parametrize(
    "devices", ["", 'devices = ["cuda:0", "cuda:1"]'], ids=["default", "named"]
)
def test_turns_are_taken_on_the_first_card_of_several(
    device: str, devices: str, is_refused: bool
) -> None:
    """The worker of two cards has a seat at the table of its first one: on the other one a model
    that wakes would take its memory while it loads, or has taken it when it starts again.
    """
    text = f"""
[[models]]
name = "big"
[[models]]
name = "small"
residency = "on-demand"
[[workers]]
name = "wide"
model = "/m"
serves = "big"
tensor_parallel = 2
{devices}
[[workers]]
name = "w"
model = "/n"
serves = "small"
device = "{device}"
"""
    if not is_refused:
        assert parse_config(text, "x").workers[1].residency == "on-demand"
        return
    assert parse_config(text.replace('residency = "on-demand"', ""), "x")
    why = "`w` has residency .* a further card of `wide`, which .* on cuda:0 alone: move it"
    with pytest.raises(ConfigError, match=why):
        parse_config(text, "x")
