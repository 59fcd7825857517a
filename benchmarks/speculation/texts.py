"""Prompts by kind of text.

Owns their sources: held-out cases of the built-in model's skills, in the model's own template, or
files of the user; random ids for a shape without a tokenizer.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from benchmarks.speculation.measure import SpeculationLoad
from config import DUMMY_PREFIX
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from training.data import skill_cases
from training.render import Template, render_prompt

KINDS: Final[dict[str, tuple[str, ...]]] = {
    "chat": ("greeting", "facts", "memory", "comparison"),
    "tools": ("tools", "tool_result", "json", "natural"),
    "copies": ("repeat", "spell", "sort", "reverse"),
}
"""The skills of each kind."""

_SEED: Final = 2031
_MOST_IDS: Final = 100_000
_TEMPLATE: Final = "chat_template.jinja"


def loads_for(
    model: str,
    model_dir: Path,
    files: Sequence[Path],
    *,
    count: int,
    prompt_tokens: int,
    sampling: SamplingParams,
    vocab_size: int,
) -> list[SpeculationLoad]:
    """`count` prompts of each kind; those of a shape have `prompt_tokens` tokens. Raises
    `ConfigError` for a model or a file without text.
    """
    if model.startswith(DUMMY_PREFIX):
        rng = random.Random(_SEED)
        drawn = [
            tuple([rng.randrange(min(vocab_size, _MOST_IDS)) for _ in range(prompt_tokens)])
            for _ in range(count)
        ]
        return [SpeculationLoad("random tokens", tuple(drawn), sampling)]
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    if files:
        return [
            SpeculationLoad(path.name, _encoded(tokenizer, _paragraphs(path), count), sampling)
            for path in files
        ]
    template = _template(model_dir)
    found = []
    for kind, skills in KINDS.items():
        cases = [skill_cases(skill, _SEED, -(-count // len(skills))) for skill in skills]
        texts = [
            render_prompt(case, template) for many in zip(*cases, strict=True) for case in many
        ]
        found.append(SpeculationLoad(kind, _encoded(tokenizer, texts, count), sampling))
    return found


def _template(model_dir: Path) -> Template:
    path = model_dir / _TEMPLATE
    if not path.exists():
        raise ConfigError(f"{model_dir} has no {_TEMPLATE}: name files of prompts with --text")
    return Template(path.read_text(encoding="utf-8"))


def _paragraphs(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}") from error
    found = [part for part in text.split("\n\n") if part.strip()]
    if not found:
        raise ConfigError(f"{path} holds no text")
    return found


def _encoded(tokenizer: Tokenizer, texts: Sequence[str], count: int) -> tuple[tuple[int, ...], ...]:
    """`count` prompts; a few texts are repeated."""
    return tuple([tuple(tokenizer.encode(texts[at % len(texts)]).ids) for at in range(count)])
