"""Rendered prompts -> token ids.

Owns the tokenizer of one model and the rule that text never becomes a control token. Uses
`encode_batch_fast`, which releases the GIL, so that a long prompt may be encoded in a thread;
`encode` holds it for 40 ms per 100 KB. Must not know templates or messages.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
from tokenizers import AddedToken, Encoding, Tokenizer

from gateway.prompt.control_tokens import PromptPiece, RenderedPrompt
from protocol.errors import ConfigError

_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")


class ControlToken(NamedTuple):
    """A special token: its id, and whether it takes the white space on its left or right."""

    id: int
    lstrip: bool
    rstrip: bool


class Encoder:
    """The tokenizer of one model.

    `tokenizer_json` is the file of that name; `declared` is `added_tokens_decoder` of
    tokenizer_config.json, for tokens that the first file lacks. Raises `ConfigError` if the files
    are not a tokenizer.
    """

    def __init__(self, tokenizer_json: bytes, declared: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = _load(tokenizer_json, declared or {})
        self._plain = _load(tokenizer_json, declared or {})
        self._plain.encode_special_tokens = True
        self.control: dict[str, ControlToken] = {
            token.content: ControlToken(token_id, token.lstrip, token.rstrip)
            for token_id, token in self.tokenizer.get_added_tokens_decoder().items()
            if token.special
        }

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, prompt: RenderedPrompt) -> "array[int]":
        """The ids of a prompt, as `array("I")`; about 1.3 us per token."""
        if prompt.pieces is None:
            encodings = encode_batch(self.tokenizer, [prompt.text])
            return array("I", encodings[0].ids)
        return array("I", chain.from_iterable(self._encode_pieces(prompt.pieces)))

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text without control tokens; an empty text has none."""
        full = [text for text in texts if text]
        encodings = iter(encode_batch(self._plain, full))
        return [next(encodings).ids if text else [] for text in texts]

    def _encode_pieces(self, pieces: tuple[PromptPiece, ...]) -> list[list[int]]:
        texts = self._stripped(pieces)
        encodings = iter(encode_batch(self._plain, texts))
        return [
            [self.control[piece.text].id] if piece.is_control else next(encodings).ids
            for piece in pieces
        ]

    def _stripped(self, pieces: tuple[PromptPiece, ...]) -> list[str]:
        """The texts between control tokens, without the white space that those take."""
        texts = []
        for at, piece in enumerate(pieces):
            if piece.is_control:
                continue
            text = piece.text
            before = self.control.get(pieces[at - 1].text) if at > 0 else None
            after = self.control.get(pieces[at + 1].text) if at + 1 < len(pieces) else None
            if before is not None and before.rstrip:
                text = text.lstrip()
            if after is not None and after.lstrip:
                text = text.rstrip()
            texts.append(text)
        return texts


class TokenizerFaults:
    """Turns what the tokenizers library raises in the block into a `ConfigError`. For damaged files
    it may panic, with a `BaseException` that has no public name and would end the process.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if type(error) is Exception or type(error).__name__ == "PanicException":
            raise ConfigError(f"the model's tokenizer fails: {error}") from error


def encode_batch(
    tokenizer: Tokenizer, texts: Sequence[str], *, add_special_tokens: bool = False
) -> list[Encoding]:
    """The encoding of each text. Raises `ConfigError` if the tokenizer cannot encode them."""
    with TokenizerFaults():
        return tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)


def _load(tokenizer_json: bytes, declared: Mapping[str, Any]) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_buffer(tokenizer_json)
    except ValueError as error:
        raise ConfigError(f"tokenizer.json is not a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = [entry for entry in declared.values() if entry["content"] not in known]
    tokenizer.add_tokens(
        [
            AddedToken(entry["content"], **{flag: bool(entry.get(flag, False)) for flag in _FLAGS})
            for entry in missing
        ]
    )
    return tokenizer


def is_byte_level(tokenizer_json: bytes) -> bool:
    """Whether each token stands for bytes by GPT-2's table, so that ids decode one by one."""
    decoder = msgspec.json.decode(tokenizer_json, type=_File).decoder
    return decoder is not None and decoder.type == "ByteLevel"


class _Decoder(msgspec.Struct):
    type: str


class _File(msgspec.Struct):
    decoder: _Decoder | None = None
