"""A tokenizer of the size of a model's head, for shapes without one.

Owns its tokens: all bytes, and invented words with the characters that precede words in JSON. The
cost of a mask depends on the number of tokens and on their beginnings, so they are as long as those
of real vocabularies. Must not know grammars.
"""

import json
import random
from pathlib import Path
from typing import Any, Final

from workers.model_dir import TOKENIZER_NAME

_ONSETS: Final = ("b", "c", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "st", "tr", "ch")
_VOWELS: Final = ("a", "e", "i", "o", "u", "ea", "ou")
_MAX_SYLLABLES: Final = 4
_BEFORE: Final = ("Ġ",) * 8 + ("",) * 10 + ('"', '":', "_")
"""`Ġ` is the space of byte-level vocabularies; nearly half of the words begin with one."""

_NUM_UNUSED: Final = 16
"""Ids after the last token, as in padded heads."""


def write_vocabulary(folder: Path, size: int, eos_id: int) -> None:
    """Write tokenizer.json: words below `eos_id`, then the end; ids up to `size` stay unused. The
    same file for the same arguments.
    """
    num_tokens = min(eos_id, size - _NUM_UNUSED)
    rng = random.Random(size)
    tokens = dict.fromkeys(_byte_signs())
    while len(tokens) < num_tokens:
        syllables = rng.randint(1, _MAX_SYLLABLES)
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables))
        tokens[rng.choice(_BEFORE) + word] = None
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    text = json.dumps(_document(vocabulary, eos_id))
    (folder / TOKENIZER_NAME).write_text(text, encoding="utf-8")


def _byte_signs() -> list[str]:
    """The sign of each byte in byte-level vocabularies: its own character if it is visible."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (number for number in range(256) if number not in visible)
    signs = {number: chr(256 + place) for place, number in enumerate(others)}
    return [signs.get(number, chr(number)) for number in range(256)]


def _document(vocabulary: dict[str, int], eos_id: int) -> dict[str, Any]:
    end = {"id": eos_id, "content": "<|end|>", "special": True, "normalized": False}
    end |= {"single_word": False, "lstrip": False, "rstrip": False}
    bytes_of_text = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "added_tokens": [end],
        "pre_tokenizer": {**bytes_of_text, "use_regex": False},
        "decoder": {**bytes_of_text, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
