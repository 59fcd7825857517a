"""The token sequences on which a setting is judged.

Owns their sources: conversations of the built-in model's data, the pages of this repository, or
files of the user; random ids for a shape without a tokenizer. They are the same in every run.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Final, NamedTuple

from tokenizers import Tokenizer

from config import DUMMY_PREFIX
from protocol.errors import ConfigError
from training.data import SKILLS, skill_cases
from training.render import load_template, render

_ROOT: Final = Path(__file__).parents[2]
_SEED: Final = 2026
_CASES: Final = 16
"""Cases of each skill at a time."""

_MOST_IDS: Final = 10_000


class JudgedWindow(NamedTuple):
    """Token ids, computed from their beginning, and which of them are judged: the ones that a model
    was trained to write.
    """

    ids: list[int]
    is_judged: list[bool]


Piece = tuple[str, bool]
"""A piece of text, and whether it is judged."""


def texts_for(
    model: str, model_dir: Path, files: Sequence[Path], num_tokens: int, window: int, vocab: int
) -> dict[str, list[JudgedWindow]]:
    """Windows of `window` tokens by the name of their text, at most `num_tokens` of each. Raises
    `ConfigError` for a file that cannot be read.
    """
    if model.startswith(DUMMY_PREFIX):
        rng = random.Random(_SEED)
        ids = [rng.randrange(min(vocab, _MOST_IDS)) for _ in range(num_tokens)]
        return {"random tokens": _windows([(ids, True)], num_tokens, window)}
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))

    def windows(texts: Iterable[Piece]) -> list[JudgedWindow]:
        encoded = ((tokenizer.encode(text).ids, is_judged) for text, is_judged in texts)
        return _windows(encoded, num_tokens, window)

    if files:
        return {path.name: windows([(_read(path), True)]) for path in files}
    return {"answers": windows(_conversations()), "pages": windows(_pages())}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}") from error


def _conversations() -> Iterator[Piece]:
    """Held-out cases of the built-in model's skills, endlessly; their answers are judged."""
    template = load_template()
    for number, skill in enumerate(cycle(SKILLS)):
        for case in skill_cases(skill, _SEED + number // len(SKILLS), _CASES):
            yield from render(case, template)


def _pages() -> Iterator[Piece]:
    for path in [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]:
        yield path.read_text(encoding="utf-8"), True


def _windows(
    sequences: Iterable[tuple[list[int], bool]], num_tokens: int, window: int
) -> list[JudgedWindow]:
    """Consecutive windows over all sequences. An incomplete last window is left out, unless there
    is no other.
    """
    ids: list[int] = []
    judged: list[bool] = []
    for sequence, is_judged in sequences:
        ids += sequence
        judged += [is_judged] * len(sequence)
        if len(ids) >= num_tokens:
            break
    size = min(window, len(ids))
    last = min(len(ids), num_tokens) - size
    starts = range(0, max(0, last) + 1, max(1, size))
    return [JudgedWindow(ids[at : at + size], judged[at : at + size]) for at in starts]
