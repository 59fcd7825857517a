"""Which tokens a made-up answer consists of, and what they read as.

Owns the choice of ids and the rule by which a seed and a place in the answer give one: a reader who
knows the seed can say what every token must be. Must not know engines.
"""

from __future__ import annotations

import struct
from array import array
from pathlib import Path
from typing import Final, final

import xxhash

from protocol.errors import ConfigError
from workers.model_dir import TOKENIZER_NAME, read_eos_ids, read_json

_PLACE: Final = struct.Struct("<QQ")
_SPACE: Final = "Ġ"
"""How byte-level vocabularies write the space that begins a word."""
_ENOUGH_WORDS: Final = 64


@final
class Vocabulary:
    """`ids` of ordinary text. Where the model has them, only words of letters with a space before
    them: such an answer has as many spaces as tokens, whatever order they come in.
    """

    def __init__(self, ids: array[int]) -> None:
        self.ids = ids

    def at(self, seed: int, index: int) -> int:
        """The output token with that index in the answer."""
        noise = _PLACE.pack(seed, index)
        return self.ids[xxhash.xxh3_64_intdigest(noise) % len(self.ids)]


def read_vocabulary(model_dir: Path) -> Vocabulary:
    """The words of the model's tokenizer.json. Raises `ConfigError` if it has no ordinary token."""
    tokenizer = read_json(model_dir / TOKENIZER_NAME)
    apart = {int(token["id"]) for token in tokenizer.get("added_tokens", ())}
    apart.update(read_eos_ids(model_dir))
    vocab = tokenizer.get("model", {}).get("vocab", {})
    # Unigram vocabularies are lists of (piece, score); the others map pieces to ids.
    ids = {int(i) for i in (vocab.values() if isinstance(vocab, dict) else range(len(vocab)))}
    if not (plain := ids - apart):
        raise ConfigError(f"{model_dir}/tokenizer.json has no ordinary token")
    words = _words(vocab) & plain if isinstance(vocab, dict) else set()
    return Vocabulary(array("I", sorted(words if len(words) >= _ENOUGH_WORDS else plain)))


def _words(vocab: dict[str, int]) -> set[int]:
    return {
        token_id
        for piece, token_id in vocab.items()
        if piece.startswith(_SPACE) and piece[1:].isascii() and piece[1:].isalpha()
    }
