"""The tokenizer of the built-in model: byte-level BPE in ChatML.

Owns how text is split before byte-pair encoding, and the reserved tokens. Must not know the data.

A small model copies a word best when the word is the same tokens everywhere: after a space in a
sentence, after a quote in JSON, inside a camelCase name. So a space is a token of its own before
most words and numbers, and every digit is one. Only the most frequent words and single letters,
which are rarely copied and make up half of a text, include their space.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE: Final = 4096
END_OF_TEXT: Final = "<|endoftext|>"
END_OF_TURN: Final = "<|im_end|>"

SPECIAL: Final = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
"""Hidden from the text of an answer."""

MARKERS: Final = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""One token each, but part of the text, where parsers look for them."""

_NUM_GLUED_WORDS: Final = 320
_SPACED_WORD: Final = re.compile(r"(?<= )[a-z]{2,}(?![A-Za-z])")


def train(texts: Sequence[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """A tokenizer of at most `vocab_size` entries; the same `texts` give the same one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_pieces(_frequent_words(texts))), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL) - len(MARKERS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_without_reserved(texts), trainer)
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens(list(MARKERS))
    return tokenizer


def tokenizer_config(context_length: int) -> dict[str, Any]:
    """The content of tokenizer_config.json."""
    return {
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TURN,
        "model_max_length": context_length,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a reserved token. Raises `ValueError` without one."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no {token}")
    return int(found)


def to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def _frequent_words(texts: Iterable[str]) -> list[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_SPACED_WORD.findall(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return ranked[:_NUM_GLUED_WORDS]


def _pieces(words: Sequence[str]) -> str:
    """The pattern of the pieces that byte-pair encoding never crosses; the first match wins."""
    glued = [rf" {one_of(words)}(?!\p{{L}})"] if words else []
    return "|".join(
        [
            r"'(?:s|t|re|ve|m|ll|d)(?!\p{L})",
            *glued,
            r" ?\p{L}(?!\p{L})",
            r"\p{Lu}?[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{Lu}+(?!\p{Ll})|\p{L}+",
            r"\p{N}",
            r" ?[^\s\p{L}\p{N}]+",
            r"\s*[\r\n]+",
            r"\s+(?!\S)|\s",
        ]
    )


def one_of(words: Iterable[str]) -> str:
    """A pattern for one of `words` (of letters, not empty), longer ones first, with common
    beginnings factored out, which halves the time that encoding takes.
    """
    endings: dict[str, list[str]] = {}
    for word in sorted(set(words)):
        endings.setdefault(word[0], []).append(word[1:])
    branches = [
        letter + (one_of(rest) + "?" * ("" in tails) if (rest := [t for t in tails if t]) else "")
        for letter, tails in endings.items()
    ]
    return f"(?:{'|'.join(branches)})"


def _without_reserved(texts: Iterable[str]) -> Iterable[str]:
    """The texts between the reserved tokens: the input of byte-pair encoding."""
    reserved = re.compile("|".join(map(re.escape, SPECIAL + MARKERS)))
    for text in texts:
        yield from filter(None, reserved.split(text))
