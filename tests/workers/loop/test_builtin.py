"""The built-in model is an ordinary model directory of the installation and answers sensibly."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from benchmarks.drive import Drive, DrivenAnswer
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from tests.fakes.agent_request import after_tool_result
from tests.fakes.tiny_models import load_tiny
from training.data import SKILLS, judge_raw, skill_cases, split_calls
from training.render import Template, render_prompt
from workers.model_dir import builtin_dir

MODEL = "builtin:herma-tiny"
MAX_WEIGHTS_BYTES = 16_000_000
MAX_VOCABULARY = 4096
SEED = 41
MIN_RIGHT = 0.75
"""Far below the model card's scores and far above chance."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city."}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(scope="module", name="model_dir")
def _model_dir() -> Path:
    return builtin_dir(MODEL)


@pytest.fixture(scope="module", name="tokenizer")
def _tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


@pytest.fixture(scope="module", name="template")
def _template(model_dir: Path) -> Template:
    return Template((model_dir / "chat_template.jinja").read_text(encoding="utf-8"))


@pytest.fixture(name="drive")
def _drive(model_dir: Path) -> Drive:
    return Drive(load_tiny(model_dir, kv_tokens=65_536, max_seqs=32, context_length=8192))


def _finish(drive: Drive, prompts: list[list[int]], max_tokens: int) -> list[DrivenAnswer]:
    """The greedy answers, in the order of the prompts."""
    for prompt in prompts:
        drive.submit(prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0))
    drive.finish()
    return list(drive.answers.values())


def _asking(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _object(path: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return parsed


@pytest.mark.parametrize("name", ["huge", "", "../builtin/herma-tiny", "herma-tiny/"])
def test_another_built_in_name_is_refused(name: str) -> None:
    """The line names the one that exists."""
    with pytest.raises(ConfigError, match=r"built-in ones are builtin:herma-tiny"):
        builtin_dir(f"builtin:{name}")


def test_the_directory_is_small_and_of_a_known_form(model_dir: Path, tokenizer: Tokenizer) -> None:
    """A Qwen3 with an agent's window, small enough for a wheel; its card is beside it."""
    config = _object(model_dir / "config.json")
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["max_position_embeddings"] == 65_536
    assert (model_dir / "model.safetensors").stat().st_size < MAX_WEIGHTS_BYTES
    assert tokenizer.get_vocab_size() <= config["vocab_size"] <= MAX_VOCABULARY
    assert "license: apache-2.0" in (model_dir / "README.md").read_text(encoding="utf-8")


def test_answers_are_greedy_unless_the_client_asks_otherwise(model_dir: Path) -> None:
    """Greedy decoding is what the model was evaluated with."""
    assert _object(model_dir / "generation_config.json")["do_sample"] is False


def test_an_agent_prompt_fits_and_comes_back(tokenizer: Tokenizer, template: Template) -> None:
    """About 50 KB of instructions and JSON schemas take a fraction of the window, without loss."""
    body = after_tool_result("tiny")
    prompt = template(body["messages"], body["tools"], add_generation_prompt=True)
    ids = tokenizer.encode_batch_fast([prompt])[0].ids
    assert len(prompt) > 45_000
    assert 10_000 < len(ids) < 32_000
    assert tokenizer.decode(ids, skip_special_tokens=False) == prompt


def test_any_text_survives(tokenizer: Tokenizer) -> None:
    """Bytes without a merge of their own are tokens too."""
    text = "Grüße, 世界! 🏛️ \t\n\n  \x00 naïve \u202e done"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_template_writes_tools_calls_and_responses(template: Template) -> None:
    """The layout that clients' parsers and Hermes-style models know."""
    body = after_tool_result("tiny")
    text = template(body["messages"], body["tools"], add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\nYou are a careful agent")
    assert '<tools>\n{"type": "function", "function": {"name": "read_file"' in text
    assert "</tools>" in text
    assert text.endswith(
        "<|im_start|>assistant\n<tool_call>\n"
        '{"name": "read_file", "arguments": {"path":"/tmp/hello"}}\n</tool_call><|im_end|>\n'
        '<|im_start|>user\n<tool_response>\n{"ok": true, "output": "hello", "error": null}\n'
        "</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_template_renders_plain_conversations(template: Template) -> None:
    """No system text of its own, nothing between the turns."""
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "tool", "content": "c"},
        {"role": "tool", "content": "d"},
    ]
    assert template(messages, (), add_generation_prompt=True) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nc\n</tool_response>\n<tool_response>\nd\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_greeting_is_answered_with_a_sentence(
    drive: Drive, tokenizer: Tokenizer, template: Template
) -> None:
    """A greeting is answered with a sentence that ends by itself, without a control token or broken
    bytes.
    """
    prompt = template(_asking("Hello!"), (), add_generation_prompt=True)
    (answer,) = _finish(drive, [tokenizer.encode(prompt).ids], 200)
    text = tokenizer.decode(answer.outputs, skip_special_tokens=False).removesuffix("<|im_end|>")
    assert answer.finished is not None
    assert answer.finished.reason == "stop"
    assert len(text.split()) >= 2
    assert text.strip().endswith((".", "?", "!"))
    assert "\ufffd" not in text
    assert "<" not in text


def test_a_tool_request_is_answered_with_a_call(
    drive: Drive, tokenizer: Tokenizer, template: Template
) -> None:
    """The answer ends in a <tool_call> of the tool that was offered, with its argument."""
    question = _asking("Please get the weather of Paris.")
    prompt = template(question, (WEATHER,), add_generation_prompt=True)
    (answer,) = _finish(drive, [tokenizer.encode(prompt).ids], 300)
    text = tokenizer.decode(answer.outputs, skip_special_tokens=False).removesuffix("<|im_end|>")
    assert answer.finished is not None
    assert answer.finished.reason == "stop"
    assert text.endswith("</tool_call>")
    assert [(c["name"], c["arguments"].keys()) for c in split_calls(text)[1]] == [
        ("get_weather", {"city"})
    ]


def test_most_held_out_cases_are_answered_right(
    drive: Drive, tokenizer: Tokenizer, template: Template
) -> None:
    """The shipped files are a trained model, and our engine computes what was trained."""
    cases = [case for skill in SKILLS for case in skill_cases(skill, SEED, 1)]
    prompts = [tokenizer.encode(render_prompt(case, template)).ids for case in cases]
    answers = _finish(drive, prompts, 400)
    texts = [tokenizer.decode(a.outputs, skip_special_tokens=False) for a in answers]
    verdicts = [
        judge_raw(case.check, text.removesuffix("<|im_end|>"))
        for case, text in zip(cases, texts, strict=True)
    ]
    assert sum(verdict.ok for verdict in verdicts) >= MIN_RIGHT * len(cases)
