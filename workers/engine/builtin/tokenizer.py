"""The tokenizer of the built-in model.

Owns its kind (byte-level BPE in ChatML) and its files. Must not know weights.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE: Final = 4096
END_OF_TEXT: Final = "<|endoftext|>"
END_OF_TURN: Final = "<|im_end|>"

SPECIAL: Final = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
"""Hidden from the text of an answer."""

MARKERS: Final = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>"),
)
"""One token each, but part of the text: parsers look for them."""

_PIECES: Final = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Words with the character before them, numbers by three, runs of punctuation, runs of space:
the common way to cut text before byte-pair encoding."""


def train(corpus: Iterable[str]) -> Tokenizer:
    """A tokenizer of `VOCAB_SIZE` entries; the same `corpus` gives the same one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL) - len(MARKERS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens(list(MARKERS))
    return tokenizer


def tokenizer_config() -> dict[str, Any]:
    """What tokenizer_config.json says."""
    return {
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def to_json(value: object) -> str:
    """The one spelling of our JSON files: their bytes are compared across hosts."""
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
