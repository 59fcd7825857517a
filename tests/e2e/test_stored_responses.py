"""Stored responses over the death of the gateway: `herma up`, kill -9, and the next gateway."""

import os
import re
import signal
from pathlib import Path

import openai
import pytest

from tests.fakes.herma_process import HermaProcess, herma_up, wait_until

CONFIG = """
[gateway]
worker_bind = "ipc://{folder}/workers"

[[models]]
name = "alpha"

[[workers]]
name = "a"
model = "builtin:herma-tiny"
serves = "alpha"
engine = "scripted"
script = "{folder}/script.toml"
"""
SCRIPT = """
[[rules]]
name = "endless"
contains = "never stop"
answer = "<think>So be it.</think>on and "
finish = "length"
token_ms = 20

[[rules]]
name = "hello"
answer = "Hello from the script."
"""


@pytest.mark.slow
def test_a_killed_gateway_keeps_what_was_stored(tmp_path: Path) -> None:
    """A response that had ended is there and can be gone on from; one that ran has failed, with the
    reason, with the items that were done and with the end of its stream.
    """
    config = tmp_path / "herma.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    (tmp_path / "script.toml").write_text(SCRIPT)
    with herma_up(config) as herma, openai.OpenAI(base_url=herma.base_url, api_key="x") as api:
        first = api.responses.create(model="alpha", input="Hi")
        running = api.responses.create(
            model="alpha", input="never stop", background=True, max_output_tokens=4000
        )
        seen = []
        for event in api.responses.retrieve(running.id, stream=True):
            seen.append(event.sequence_number)
            if event.type == "response.output_text.delta" and len(seen) > 60:
                break
        pid = herma.wait_pid("herma gateway")
        os.kill(pid, signal.SIGKILL)
        herma.wait_pid("herma gateway", other_than=pid)
        wait_until(lambda: _url(herma) != herma.base_url, "the next gateway")
        api.base_url = _url(herma)
        wait_until(lambda: _answers(api), "the next gateway's worker")
        again = api.responses.retrieve(first.id)
        assert again.model_dump() == first.model_dump()
        second = api.responses.create(model="alpha", input="Go on", previous_response_id=first.id)
        assert second.output_text == first.output_text
        failed = api.responses.retrieve(running.id)
        assert failed.status == "failed"
        assert failed.error is not None
        assert "gateway stopped" in failed.error.message
        assert [item.type for item in failed.output] == ["reasoning"]
        events = list(api.responses.retrieve(running.id, stream=True))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[-1].type == "response.failed"


def _url(herma: HermaProcess) -> str:
    """The URL of the last gateway, which chooses its own port."""
    urls = re.findall(r"serving (http://\S+),", "".join(herma.output))
    return f"{urls[-1]}/v1" if urls else herma.base_url


def _answers(api: openai.OpenAI) -> bool:
    try:
        api.responses.create(model="alpha", input="Hi", store=False)
    except openai.APIError:
        return False
    return True
