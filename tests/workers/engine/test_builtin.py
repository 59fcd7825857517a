"""The built-in model is made on first start, the same everywhere, and speaks in words."""

import json
import shutil
from pathlib import Path

import jinja2
import pytest
import transformers
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from benchmarks.gpu_parity.drive import Drive
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from tests.fakes.agent_request import after_tool_result
from tests.fakes.tiny_models import load_tiny
from workers.core.model_files import MODEL_FILES, files_digest
from workers.engine.builtin import builtin_dir

MODEL = "builtin:herma-tiny"
TEXT_DIGEST = "e498e59dabe00c0ce1c7afd44a1de450"


@pytest.fixture(scope="module", name="model_dir")
def _model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    return builtin_dir(MODEL, {"HERMA_CACHE_DIR": str(cache)}, lambda *_: None)


@pytest.fixture(scope="module", name="tokenizer")
def _tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


def _render(model_dir: Path, body: dict[str, object]) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.undefined = jinja2.Undefined
    template = environment.from_string((model_dir / "chat_template.jinja").read_text())
    return template.render(
        messages=body["messages"], tools=body.get("tools"), add_generation_prompt=True
    )


def _bytes(model_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in model_dir.iterdir()}


def test_a_second_making_gives_the_same_bytes(model_dir: Path, tmp_path: Path) -> None:
    """Two hosts agree on every file, so their workers may serve under one name."""
    again = builtin_dir(MODEL, {"HERMA_CACHE_DIR": str(tmp_path)}, lambda *_: None)
    assert _bytes(again) == _bytes(model_dir)
    assert [path.name for path in again.parent.iterdir()] == [again.name]


def test_the_text_files_are_those_of_this_revision(model_dir: Path) -> None:
    """Whoever changes them raises REVISION and this digest, so that no old cache is served."""
    texts = {name: data for name, data in _bytes(model_dir).items() if name in MODEL_FILES}
    assert files_digest(texts).hex() == TEXT_DIGEST
    assert model_dir.name == "herma-tiny-1"


def test_a_made_model_is_taken_from_the_cache(model_dir: Path) -> None:
    """The second start makes nothing and reports nothing."""
    cache, said = model_dir.parents[1], []
    found = builtin_dir(MODEL, {"HERMA_CACHE_DIR": str(cache)}, lambda *report: said.append(report))
    assert found == model_dir
    assert not said


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """One line with the variable that moves it."""
    (tmp_path / "models").write_text("in the way")
    with pytest.raises(ConfigError, match="HERMA_CACHE_DIR"):
        builtin_dir(MODEL, {"HERMA_CACHE_DIR": str(tmp_path)}, lambda *_: None)


def test_another_built_in_name_is_refused() -> None:
    """The line names the one that exists."""
    with pytest.raises(ConfigError, match="builtin:herma-tiny"):
        builtin_dir("builtin:huge", {}, lambda *_: None)


def test_an_agent_prompt_has_an_agents_number_of_tokens(
    model_dir: Path, tokenizer: Tokenizer
) -> None:
    """About 50 KB of instructions and JSON schemas are 10 to 16 thousand tokens, and back again."""
    prompt = _render(model_dir, after_tool_result("tiny"))
    ids = tokenizer.encode_batch_fast([prompt])[0].ids
    assert len(prompt) > 45_000
    assert 10_000 < len(ids) < 16_000
    assert tokenizer.decode(ids, skip_special_tokens=False) == prompt


def test_any_text_survives(tokenizer: Tokenizer) -> None:
    """Bytes without a merge of their own are tokens too."""
    text = "Grüße, 世界! 🏛️ \t\n\n  \x00 naïve \u202e done"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_template_writes_tools_calls_and_responses(model_dir: Path) -> None:
    """The layout that clients' parsers and Hermes-style models know."""
    text = _render(model_dir, after_tool_result("tiny"))
    assert text.startswith("<|im_start|>system\nYou are a careful agent")
    assert '<tools>\n{"type": "function", "function": {"name": "read_file"' in text
    assert "</tools>" in text
    assert text.endswith(
        "<|im_start|>assistant\n<tool_call>\n"
        '{"name": "read_file", "arguments": {"path":"/tmp/hello"}}\n</tool_call><|im_end|>\n'
        '<|im_start|>user\n<tool_response>\n{"ok": true, "output": "hello", "error": null}\n'
        "</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_template_renders_plain_conversations(model_dir: Path) -> None:
    """No system text of its own, nothing between the turns."""
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "tool", "content": "c"},
        {"role": "tool", "content": "d"},
    ]
    assert _render(model_dir, {"messages": messages}) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nc\n</tool_response>\n<tool_response>\nd\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_answers_are_words_and_come_to_an_end(model_dir: Path, tokenizer: Tokenizer) -> None:
    """Most answers end by themselves, none is empty or holds a control token or broken bytes."""
    drive = Drive(load_tiny(model_dir, kv_tokens=16_384, max_seqs=32))
    for seed in range(32):
        body = {"messages": [{"role": "user", "content": f"Say {seed}"}]}
        ids = tokenizer.encode(_render(model_dir, body)).ids
        drive.submit(ids, SamplingParams(max_tokens=400), seed=seed)
    drive.finish()
    answers = list(drive.answers.values())
    ended = [a for a in answers if a.finished is not None and a.finished.reason == "stop"]
    assert len(ended) > 16
    texts = [tokenizer.decode(a.outputs) for a in answers]
    assert all(text.strip() for text in texts)
    assert not any("\ufffd" in text or "<tool_" in text for text in texts)


def test_transformers_reads_the_directory(model_dir: Path, tmp_path: Path) -> None:
    """It is an ordinary model directory: others load its tokenizer, template and weights."""
    copy = shutil.copytree(model_dir, tmp_path / "copy")
    tokenizer = transformers.AutoTokenizer.from_pretrained(copy)
    messages = [{"role": "user", "content": "hello"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == _render(model_dir, {"messages": messages})
    model = transformers.AutoModelForCausalLM.from_pretrained(copy)
    assert model.config.max_position_embeddings == 65_536
    assert tokenizer.eos_token_id == model.config.eos_token_id
