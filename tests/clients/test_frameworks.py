"""Frameworks that agents are built with, as they come from PyPI and npm: langchain-openai,
pydantic-ai, instructor, litellm as a client, huggingface_hub, OpenRouter's SDK, and the Vercel AI
SDK.

Each makes its checks in a process and an environment of its own, and every test judges one thing of
what it saw. Texts and calls come from a scripted engine; objects of a schema from the built-in
model, because only a native engine enforces one. What the frameworks ask elsewhere, such as lists
of prices, goes to a closed port.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.clients.catalogue import all_environments
from tests.clients.install import is_installed
from tests.fakes.herma_process import HermaProcess, herma_up

BOUND_S = 240
HERE = Path(__file__).parent
ENVIRONMENTS = Path(os.environ.get("CLIENTS_DIR", HERE.parents[1] / ".clients")).absolute()
CLOSED = "http://127.0.0.1:9"
HELLO = "Hello from the script: naïve café 🙂, twice."
CALL = ["get_weather", {"city": "Athens", "days": 1}]
TURN = {"call": CALL, "text": "It is sunny in Athens."}
MAX_AGE = 150
BOTH_APIS = ("langchain", "pydantic-ai", "litellm", "ai-sdk")
CHAT_ALONE = ("huggingface-hub", "openrouter")
FRAMEWORKS = (*BOTH_APIS, *CHAT_ALONE, "instructor")
NODE = ("ai-sdk", "openrouter")
FLEET = """
[gateway]
port = 0
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "alpha"

[[models]]
name = "tiny"

[[workers]]
name = "a"
model = "builtin:herma-tiny"
serves = "alpha"
engine = "scripted"
script = "{script}"

[[workers]]
name = "t"
model = "builtin:herma-tiny"
serves = "tiny"
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", name="herma")
def _herma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HermaProcess]:
    if "CLIENTS_DIR" not in os.environ:
        pytest.skip("`make test-clients` makes the environments and runs this")
    folder = tmp_path_factory.mktemp("frameworks")
    config = folder / "herma.toml"
    config.write_text(FLEET.format(folder=folder, script=HERE / "script.toml"))
    with herma_up(config) as herma:
        herma.wait_models_ready({"alpha": 1, "tiny": 1})
        yield herma


@cache
def _seen(framework: str, url: str) -> dict[str, Any]:
    """What the framework has observed, by the name of the check."""
    environment = next(one for one in all_environments() if one.name == framework)
    if not is_installed(ENVIRONMENTS, environment):
        pytest.skip(f"{framework} is not installed")
    folder, name = ENVIRONMENTS / framework, f"check_{framework.replace('-', '_')}"
    program = [folder / "bin/python", HERE / f"{name}.py"]
    if framework in NODE:
        program = [Path("node"), HERE / f"{name}.mjs", folder]
    env = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "HTTPS_PROXY": CLOSED,
        "HTTP_PROXY": CLOSED,
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [*program, url, "sk-none"],
        env=env,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.mark.parametrize(
    ("framework", "api"),
    [
        *((one, api) for one in BOTH_APIS for api in ("chat", "responses")),
        *((one, "chat") for one in CHAT_ALONE),
    ],
)
def test_an_answer_is_the_same_whole_and_streamed(
    herma: HermaProcess, framework: str, api: str
) -> None:
    """An answer is the same whole and streamed, by chat completions and by responses."""
    seen = _seen(framework, herma.base_url)
    assert seen[api] == HELLO
    assert seen["stream" if api == "chat" else "responses stream"] == HELLO


@pytest.mark.parametrize("framework", [*BOTH_APIS, *CHAT_ALONE])
def test_a_tool_is_called_and_its_result_answered(herma: HermaProcess, framework: str) -> None:
    """A tool is called and its result answered, by chat completions, and by responses where the
    framework goes on by itself.
    """
    seen = _seen(framework, herma.base_url)
    assert seen["tools"] == TURN
    if framework == "litellm":
        assert seen["responses call"] == CALL
    elif framework in BOTH_APIS:
        assert seen["responses tools"] == TURN


def test_the_ai_sdk_names_stored_items(herma: HermaProcess) -> None:
    """The AI SDK sends ids of stored items, and leaves the texts of earlier answers to the
    gateway.
    """
    second = _seen("ai-sdk", herma.base_url)["second question"]
    assert second == {"text": HELLO, "kinds": ["user", "item_reference", "user"]}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_objects_are_of_the_schema(herma: HermaProcess, framework: str) -> None:
    """Objects have the form of the schema in each way in which the framework asks for them:
    response formats, tools, strict tools.
    """
    seen = _seen(framework, herma.base_url)
    objects = [one for one in seen.values() if isinstance(one, dict) and "age" in one]
    assert objects
    for one in objects:
        assert set(one) == {"name", "age"}
        assert isinstance(one["name"], str)
        assert 0 <= one["age"] <= MAX_AGE
