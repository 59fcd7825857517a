"""Random walks through a grammar: what a model of random weights would write, without the model."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import jsonschema
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from gateway.schemas import LeftOut
from workers.model_dir import builtin_dir

_CLOSING: Final = frozenset('"}],0')
_EAGERNESS: Final = 0.4
"""How often a walk takes a token that may close something, while one is allowed."""


class Walker:
    """Walks with the tokens of the built-in model, within the engine's limits."""

    def __init__(self, model_dir: Path | None = None, tokenizer: str = "") -> None:
        text = (
            tokenizer
            or ((model_dir or builtin_dir("builtin:herma-tiny")) / "tokenizer.json").read_text()
        )
        self._ids = {one["content"]: one["id"] for one in json.loads(text)["added_tokens"]}
        self._tokenizer = LLTokenizer(text)
        self._limits = LLParserLimits(
            initial_lexer_fuel=1_000_000,
            step_lexer_fuel=50_000,
            step_max_items=20_000,
            max_lexer_states=20_000,
        )
        size = self._tokenizer.vocab_size
        self._texts = [self._tokenizer.decode_str([number]) for number in range(size)]
        self._closing = np.array([text[:1] in _CLOSING and len(text) <= 2 for text in self._texts])

    def refusal(self, schema_text: str) -> str:
        """Why the library refuses the schema; empty if it does not."""
        matcher = self._matcher(schema_text)
        if not matcher.is_error():
            matcher.compute_bitmask()
        return str(matcher.get_error()) if matcher.is_error() else ""

    def token(self, text: str) -> int | None:
        """The added token that is this text, if there is one."""
        return self._ids.get(text)

    def accepts(self, grammar: str, text: str) -> bool:
        """Whether a Lark grammar allows an answer of exactly this text."""
        matcher = self._lark_matcher(grammar)
        tokens = self._tokenizer.tokenize_str(text, parse_special=True)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    def accepts_pieces(self, grammar: str, pieces: Iterable[tuple[str, bool]]) -> bool:
        """Whether the grammar accepts an answer in pieces: tags are tokens in those that are
        markup, and spelled in others.
        """
        matcher = self._lark_matcher(grammar)
        for text, is_markup in pieces:
            parts = [text] if is_markup else text
            tokens = [
                token
                for part in parts
                for token in self._tokenizer.tokenize_str(part, parse_special=True)
            ]
            if matcher.try_consume_tokens(tokens) != len(tokens):
                return False
        return bool(matcher.is_accepting())

    def accepts_schema(self, schema_text: str, text: str) -> bool:
        """Whether a schema allows an answer of exactly this text."""
        matcher = self._matcher(schema_text)
        tokens = self._tokenizer.tokenize_str(text)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    def walk_lark(
        self,
        grammar: str,
        rng: random.Random,
        max_tokens: int = 400,
        begin: str = "",
        end_of_text: str = "",
    ) -> str | None:
        """As `walk`, by a Lark grammar, behind `begin`, which the text includes. `end_of_text` is
        taken now and then where it is allowed: no random walk would meet it.
        """
        matcher = self._lark_matcher(grammar)
        tokens = self._tokenizer.tokenize_str(begin, parse_special=True) if begin else []
        assert matcher.try_consume_tokens(tokens) == len(tokens), begin
        ends = self._tokenizer.tokenize_str(end_of_text, parse_special=True) if end_of_text else []
        return self._walk(matcher, list(tokens), rng, max_tokens, ends)

    def walk(self, schema_text: str, rng: random.Random, max_tokens: int = 400) -> str | None:
        """A text that the grammar allows and that ends by itself; None if it did not."""
        return self._walk(self._matcher(schema_text), [], rng, max_tokens)

    def _walk(
        self,
        matcher: LLMatcher,
        taken: list[int],
        rng: random.Random,
        max_tokens: int,
        ends: Sequence[int] = (),
    ) -> str | None:
        for _ in range(max_tokens):
            if ends and rng.random() < _EAGERNESS:
                num_allowed = matcher.validate_tokens(ends)
                if num_allowed == len(ends):
                    assert matcher.consume_tokens(ends)
                    taken.extend(ends)
            mask = matcher.compute_bitmask()
            assert not matcher.is_error(), matcher.get_error()
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits)
            if self._tokenizer.eos_token in allowed:
                return self._text(taken)
            closing = allowed[self._closing[allowed]]
            choice = closing if len(closing) and rng.random() < _EAGERNESS else allowed
            token = int(choice[rng.randrange(len(choice))])
            assert matcher.consume_token(token), matcher.get_error()
            taken.append(token)
            if matcher.is_stopped():
                return self._text(taken)
        return None

    def _text(self, taken: list[int]) -> str:
        names = {number: name.encode() for name, number in self._ids.items()}
        parts = [names.get(one) or self._tokenizer.decode_bytes([one]) for one in taken]
        return b"".join(parts).decode(errors="replace")

    def _lark_matcher(self, text: str) -> LLMatcher:
        grammar = LLMatcher.grammar_from_lark(text)
        matcher = LLMatcher(self._tokenizer, grammar, limits=self._limits, log_level=0)
        assert not matcher.is_error(), (matcher.get_error(), text)
        return matcher

    def _matcher(self, schema_text: str) -> LLMatcher:
        grammar = LLMatcher.grammar_from_json_schema(schema_text)
        return LLMatcher(self._tokenizer, grammar, limits=self._limits, log_level=0)


def with_tokens(model_dir: Path, texts: Iterable[str]) -> str:
    """The tokenizer of a model, with more special tokens, as JSON."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    tokenizer.add_special_tokens(list(texts))
    return tokenizer.to_str()


def check_valid(text: str, schema: dict[str, Any], left_out: Iterable[LeftOut]) -> None:
    """Check a text by an independent validator, in the schema's own draft, but for the keywords
    that were reported as left out.
    """
    rest = copy.deepcopy(schema)
    for one in left_out:
        _remove(rest, one)
    validator = jsonschema.validators.validator_for(rest, jsonschema.Draft202012Validator)
    validator(rest).validate(json.loads(text))


def _remove(schema: dict[str, Any], left_out: LeftOut) -> None:
    *steps, last = left_out.pointer.split("/")[1:]
    names = [step.replace("~1", "/").replace("~0", "~") for step in (*steps, last)]
    *steps, last = names
    at: Any = schema
    for step in steps:
        at = at[int(step)] if isinstance(at, list) else at[step]
    if steps and steps[-1] == "properties":
        at[last] = True
    elif last == "oneOf":
        at["anyOf"] = at.pop("oneOf")
    else:
        at.pop(last, None)
