"""Tokenizers of several designs, small and trained on the spot."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from gateway.prompt.split_patterns import TABLE
from tests.fakes.text_files import CORPUS, MARKERS, SPECIALS, make_tokenizer

_VOCAB_SIZE = 300
_BUILTIN = Path(__file__).parents[2] / "config" / "builtin" / "herma-tiny" / "tokenizer.json"


def _builtin() -> str:
    tokenizer = Tokenizer.from_file(str(_BUILTIN))
    state: dict[str, Any] = msgspec.json.decode(tokenizer.pre_tokenizer.__getstate__())
    source = state["pretokenizers"][0]["pattern"]["Regex"]
    assert isinstance(source, str)
    return source


PATTERNS = (*(sources for sources in TABLE if "WORDS" not in sources[0]), (_builtin(),))
"""The expressions of all known tokenizers, those of its stages in their order."""


def _with_tokens(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    tokenizer.add_tokens([AddedToken(t, special=False) for t in MARKERS])
    return tokenizer


def byte_level() -> Tokenizer:
    """As Qwen and Llama 3 have it: nothing stands before a word, a regular expression cuts."""
    return Tokenizer.from_str(make_tokenizer().to_str())


def byte_level_with_space() -> Tokenizer:
    """As GPT-2 with `add_prefix_space`: every stretch begins as a word."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _with_tokens(tokenizer)


def splits(sources: Sequence[str]) -> pre_tokenizers.PreTokenizer:
    """Cuts a text by each of these expressions in turn."""
    stages = [pre_tokenizers.Split(Regex(source), "isolated") for source in sources]
    return pre_tokenizers.Sequence(stages)  # type: ignore[return-value]


def split_by(
    sources: Sequence[str], corpus: Sequence[str] = CORPUS, vocab_size: int = _VOCAB_SIZE
) -> Tokenizer:
    """A byte-level BPE whose texts are cut by these expressions."""
    tokenizer = Tokenizer(models.BPE())
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([splits(sources), to_bytes])  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return Tokenizer.from_str(_with_tokens(tokenizer).to_str())


def unigram(prepend_scheme: str = "always") -> Tokenizer:
    """As SentencePiece makes it: spaces are letters, and a text begins with one."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(left=False)])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=_VOCAB_SIZE, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _with_tokens(tokenizer)


def word_piece() -> Tokenizer:
    """As BERT has it: lower case without accents, words by white space and punctuation."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # type: ignore[arg-type]
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=_VOCAB_SIZE, special_tokens=["[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _with_tokens(tokenizer)


def greedy_for_space() -> Tokenizer:
    """As Phi-3 has it: a control token takes the white space behind it."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("<|end|>", rstrip=True, special=True)])
    return tokenizer


@cache
def designs() -> Mapping[str, Tokenizer]:
    """All of them by name."""
    return {
        "byte-level": byte_level(),
        "byte-level with space": byte_level_with_space(),
        "unigram": unigram(),
        "unigram, first": unigram("first"),
        "wordpiece": word_piece(),
        "greedy for space": greedy_for_space(),
    }


SEPARABLE = ("byte-level", "byte-level with space", "unigram", "wordpiece")
INSEPARABLE = ("unigram, first", "greedy for space")
