"""A model of random weights with the tokenizer of the built-in one, and ids that no token has."""

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.fakes.tiny_models import load_tiny, write_tiny_model
from workers.engine.grammar.compiler import LlGuidanceCompiler
from workers.engine.runner import ModelRunner
from workers.model_dir import builtin_dir

VOCABULARY = 4200
"""The rows of the head: the tokenizer has 4,096 tokens."""
EOS, OTHER_EOS = 4089, 4087
NAMES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture(scope="package", name="model_dir")
def _model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("random")
    write_tiny_model(folder, vocab_size=VOCABULARY, eos_token_id=[EOS, OTHER_EOS])
    for name in NAMES:
        shutil.copy(builtin_dir("builtin:herma-tiny") / name, folder)
    return folder


@pytest.fixture(scope="package", name="tokenizer")
def _tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


@pytest.fixture(scope="package", name="compiler")
def _compiler(model_dir: Path) -> LlGuidanceCompiler:
    return LlGuidanceCompiler(model_dir, VOCABULARY, frozenset({EOS, OTHER_EOS}))


@pytest.fixture(name="runner")
def _runner(model_dir: Path) -> ModelRunner:
    return load_tiny(model_dir, kv_tokens=32 * 1024, max_seqs=32, token_budget=512)
