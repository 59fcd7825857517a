"""Variables and templates of `[[models]]`: a client's own variables go before them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from config import ModelConfig, ParamsConfig
from gateway.turn import read_model_prompts
from gateway.upstream import apply_params
from protocol.errors import ConfigError
from protocol.messages import Relay, Submit
from tests.fakes.running_gateway import open_gateway
from tests.fakes.text_files import make_tokenizer
from tests.fakes.worker import FakeWorker, open_worker, prompt_ids
from tests.gateway.turn.test_relayed_chat import TextWorker

TEMPLATE = "{{ keep }}/{{ other }}/{{ messages[0].content }}"


def _model(folder: Path, **variables: Any) -> ModelConfig:
    path = folder / "own.jinja"
    path.write_text("\ufeff" + TEMPLATE, encoding="utf-8")
    return ModelConfig(name="alpha", chat_template=str(path), chat_template_kwargs=variables)


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({}, "1/2/Hi"),
        ({"chat_template_kwargs": {"other": 3}}, "1/3/Hi"),
        ({"chat_template_kwargs": {"keep": 4, "other": 3}}, "4/3/Hi"),
    ],
)
async def test_a_models_template_and_variables_make_the_prompt(
    given: dict[str, Any], seen: str, tmp_path: Path
) -> None:
    """A model's template and variables make the prompt; the client's variables are merged over
    them, not taken instead.
    """
    worker = FakeWorker(text="Yes.")
    model = _model(tmp_path, keep=1, other=2)
    async with open_gateway(models=(model,)) as gateway, open_worker(gateway.address, worker):
        await gateway.wait_state("ready")
        for _ in range(2):
            await gateway.ask(messages=[{"role": "user", "content": "Hi"}], **given)
        prompt = make_tokenizer().decode(prompt_ids(await worker.wait(Submit)))
    assert prompt == seen


async def test_a_text_engine_gets_the_variables() -> None:
    """A text engine gets the variables, because it renders its own template."""
    model = ModelConfig(name="alpha", chat_template_kwargs={"keep": 1, "other": 2})
    worker = TextWorker()
    async with open_gateway(models=(model,)) as gateway, open_worker(gateway.address, worker):
        await gateway.wait_local()
        await gateway.ask(chat_template_kwargs={"other": 3})
        relay = await worker.wait(Relay)
    assert json.loads(relay.data)["chat_template_kwargs"] == {"keep": 1, "other": 3}


def test_defaults_of_an_alias_are_merged_too() -> None:
    params = ParamsConfig(default={"chat_template_kwargs": {"keep": 1, "other": 2}})
    raw = {"chat_template_kwargs": {"other": 3}}
    assert apply_params(raw, params) == {"chat_template_kwargs": {"keep": 1, "other": 3}}
    assert apply_params({}, params) == {"chat_template_kwargs": {"keep": 1, "other": 2}}
    whole = msgspec.structs.replace(params, set={"chat_template_kwargs": {"keep": 5}})
    assert apply_params(raw, whole) == {"chat_template_kwargs": {"keep": 5}}


@pytest.mark.parametrize(
    ("source", "words"),
    [(b"{% if %}", "the chat template, line 1"), (b"\xff", "not UTF-8"), (None, "cannot be read")],
)
def test_a_file_that_is_no_template_is_refused(
    source: bytes | None, words: str, tmp_path: Path
) -> None:
    """A file that is no template is refused before anything starts, or a reload takes it."""
    model = _model(tmp_path)
    Path(str(model.chat_template)).unlink()
    if source is not None:
        Path(str(model.chat_template)).write_bytes(source)
    with pytest.raises(ConfigError, match=f"model `alpha`: chat_template .*{words}"):
        read_model_prompts([model])


def test_a_variable_that_follows_from_a_request_is_refused() -> None:
    model = ModelConfig(name="alpha", chat_template_kwargs={"messages": []})
    with pytest.raises(ConfigError, match=r"kwargs\.messages follows from the request"):
        read_model_prompts([model])
