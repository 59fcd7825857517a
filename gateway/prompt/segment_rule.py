"""Whether a prompt may be encoded segment by segment.

Owns the rule that decides whether the ids of a prompt equal the joined ids of its segments, if the
prompt is cut in front of control tokens. A tokenizer finds its added tokens first and treats every
stretch between them by itself, so cutting changes nothing unless

- an added token depends on what is beside it (lstrip, rstrip, single_word), or could match across a
  cut, together with letters of a control token;
- a stage looks beyond its stretch: Metaspace in the form that marks only the beginning of a text,
  or a stage that is not known here;
- control tokens are searched for after normalising the text, or merges are random.

Must not know prompts.
"""

from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec
from tokenizers import AddedToken, Tokenizer

_NORMALIZERS: Final = frozenset(
    {
        "BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt",
        "Precompiled", "Prepend", "Replace", "Strip", "StripAccents",
    }
)  # fmt: skip
_PRE_TOKENIZERS: Final = frozenset(
    {
        "BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Metaspace",
        "Punctuation", "Split", "UnicodeScripts", "Whitespace", "WhitespaceSplit",
    }
)  # fmt: skip


class Stage(msgspec.Struct):
    """A normalizer or pre-tokenizer, with the settings of all kinds that matter for cutting."""

    type: str
    prepend_scheme: str | None = None
    split: bool = False
    use_regex: bool = False
    add_prefix_space: bool = False
    behavior: str = ""
    invert: bool = False
    pattern: dict[str, str] = {}
    content: str = ""
    strip_left: bool = False
    normalizers: "list[Stage]" = []
    pretokenizers: "list[Stage]" = []


def is_separable(tokenizer: Tokenizer, control: Collection[str]) -> bool:
    """Whether prompts may be cut in front of `control`, some of the special tokens."""
    added = list(tokenizer.get_added_tokens_decoder().values())
    return (
        not any(token.lstrip or token.rstrip or token.single_word for token in added)
        and all(_is_found_first(token, tokenizer) for token in added if token.content in control)
        and not _overlap((token.content for token in added), control)
        and not getattr(tokenizer.model, "dropout", None)
        and _is_stateless(tokenizer)
    )


def _is_found_first(token: AddedToken, tokenizer: Tokenizer) -> bool:
    return not token.normalized or tokenizer.normalizer is None


def _overlap(added: Iterable[str], control: Collection[str]) -> bool:
    """Whether an added token could match across an end of a control token, or around one. Works
    with sets, because some tokenizers have thousands of both.
    """
    whole = frozenset(control)
    beginnings = {token[:end] for token in whole for end in range(1, len(token) + 1)}
    lengths = {len(token) for token in whole}
    return any(
        any(token[at:] in beginnings for at in range(1, len(token)))
        or any(
            token[at : at + length] in whole
            for length in lengths
            for at in range(len(token) - length + 1)
            if length < len(token)
        )
        for token in added
    )


def _is_stateless(tokenizer: Tokenizer) -> bool:
    normalizers = stages_of(tokenizer.normalizer)
    pre_tokenizers = stages_of(tokenizer.pre_tokenizer)
    return all(stage.type in _NORMALIZERS for stage in normalizers) and all(
        stage.type in _PRE_TOKENIZERS and stage.prepend_scheme != "first"
        for stage in pre_tokenizers
    )


def stages_of(part: Any) -> list[Stage]:  # noqa: ANN401 (the library's stages have no type)
    """The stages of a normalizer or pre-tokenizer; sequences are flattened. Their state is JSON, in
    the form of tokenizer.json.
    """
    if part is None:
        return []
    return _flat(msgspec.json.decode(part.__getstate__(), type=Stage))


def _flat(stage: Stage) -> list[Stage]:
    if stage.type != "Sequence":
        return [stage]
    return [leaf for inner in stage.normalizers + stage.pretokenizers for leaf in _flat(inner)]
