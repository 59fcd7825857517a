"""Compiles the grammars of requests, in a thread of its own.

Owns llguidance: its tokenizer, its limits and the compiled grammars. Must not know sequences'
steps, nor what a gateway made a grammar from.

Users write the grammars, so each has bounds: of the work to compile it, of the work for one mask,
and of its automaton. llguidance computes 50,000 units of lexer fuel, or 20,000 items, in 1 ms: one
mask takes 2 ms at the worst, where most take 0.05.
"""

from __future__ import annotations

import hashlib
import queue
import sys
import threading
import traceback
from array import array
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np

from protocol.messages import Grammar
from workers.engine.grammar.relaxed_grammar import without_broken
from workers.engine.grammar.sequence_grammar import (
    GrammarBroken,
    GrammarVocabulary,
    SequenceGrammar,
)
from workers.loop import CompiledGrammar
from workers.model_dir import TOKENIZER_NAME
from workers.scheduler import Key

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_COMPILED: Final = 64
"""Grammars that are kept: agents repeat theirs with every turn. A hostile one takes up to 30 MB."""

LARGE_VOCABULARY: Final = 32_768
"""Tokens from which on the tokenizer is read at the start, because the library holds the
interpreter's lock meanwhile and all steps wait: 1.4 s for 151,643 tokens on two cores of a Xeon,
0.07 s for 4,096. Most engines see no grammar, so a small one is read for the first.
"""

_COMPILE_FUEL: Final = 1_000_000
_STEP_FUEL: Final = 50_000
_STEP_ITEMS: Final = 20_000
_MAX_STATES: Final = 20_000
_MAX_REASON_CHARS: Final = 400

_GAP: Final = "\n\n"
"""What models write between their reasoning and the answer."""


@final
class LlGuidanceCompiler:
    """`workers.loop.GrammarCompiler` for the model in `model_dir`. `vocab_size` is the number of
    logits: ids that no token has are never allowed.
    """

    def __init__(self, model_dir: Path, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self._path = model_dir / TOKENIZER_NAME
        self._vocab_size = vocab_size
        self._eos_ids = sorted(eos_ids)
        self._library: _Library | None = None
        self._compiled: OrderedDict[bytes, LLMatcher] = OrderedDict()
        self._work: queue.SimpleQueue[tuple[Key, Grammar, array[int]]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[CompiledGrammar] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, key: Key, grammar: Grammar, outputs: array[int]) -> None:
        """See `GrammarCompiler`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)
            self._thread.start()
        self._work.put((key, grammar, outputs))

    def take_done(self) -> list[CompiledGrammar]:
        """See `GrammarCompiler`."""
        done = []
        while True:
            try:
                done.append(self._done.get_nowait())
            except queue.Empty:
                return done

    def load(self) -> None:
        """Read the tokenizer; else the first `compile` does. See `LARGE_VOCABULARY`."""
        self._loaded()

    def compile(self, grammar: Grammar, outputs: array[int]) -> SequenceGrammar:
        """The grammar behind `outputs`. Raises `GrammarBroken` with a reason for the client."""
        library = self._loaded()
        vocabulary = library.vocabulary
        matcher = self._matcher(library, grammar).deep_copy()
        follower = SequenceGrammar(matcher, grammar, vocabulary)
        # The first mask may cost more than all that follow: here it delays no step, and what is
        # over the bounds is refused before the first byte.
        follower.fill(outputs, np.empty(vocabulary.num_words, np.int32))
        return follower

    def _loaded(self) -> _Library:
        if self._library is None:
            self._library = _load(self._path, self._vocab_size, self._eos_ids)
        return self._library

    def _run(self) -> None:
        while True:
            key, grammar, outputs = self._work.get()
            try:
                with _Faults():
                    compiled = CompiledGrammar(key, self.compile(grammar, outputs))
            except GrammarBroken as error:
                compiled = CompiledGrammar(key, None, str(error))
            self._done.put(compiled)

    def _matcher(self, library: _Library, grammar: Grammar) -> LLMatcher:
        """The compiled grammar at its start; not to be changed."""
        digest = hashlib.sha256(f"{grammar.kind}\n{grammar.text}".encode()).digest()
        matcher = self._compiled.get(digest)
        if matcher is None:
            matcher = self._compile(library, grammar)
            self._compiled[digest] = matcher
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(digest)
        return matcher

    def _compile(self, library: _Library, grammar: Grammar) -> LLMatcher:
        """The compiled grammar. Schemas that are not strict and cannot be enforced become such that
        allow any object, with a line in the log. Raises `GrammarBroken`, which names the rule.
        """
        try:
            return library.compile(grammar)
        except GrammarBroken as error:
            relaxed = without_broken(grammar, partial(_fault, library))
            if relaxed is None:
                raise
            for rule, reason in relaxed.rules:
                name = f"of rule {rule!r} " if rule else ""
                print(f"a schema {name}allows any object now: {reason}", file=sys.stderr)
            try:
                return library.compile(relaxed.grammar)
            except GrammarBroken:
                raise error from None


def _fault(library: _Library, grammar: Grammar) -> str:
    """Why a grammar cannot be compiled, or its first mask not be computed; empty if it can."""
    try:
        library.compile(grammar)
    except GrammarBroken as error:
        return str(error)
    return ""


class _Faults:
    """Logs what is raised in the block and turns it into a `GrammarBroken`: one grammar's fault
    must not end the thread, on which all others wait. A panic of the library is no `Exception`.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, GrammarBroken):
            traceback.print_exception(error, file=sys.stderr)
            raise GrammarBroken("the engine failed to compile it; its log says why") from error


class _Library(NamedTuple):
    """llguidance with the model's tokenizer."""

    matcher: type[LLMatcher]
    tokenizer: LLTokenizer
    limits: LLParserLimits
    vocabulary: GrammarVocabulary

    def compile(self, grammar: Grammar) -> LLMatcher:
        """Raises `GrammarBroken`."""
        try:
            match grammar.kind:
                case "json_schema":
                    text = self.matcher.grammar_from_json_schema(grammar.text)
                case "regex":
                    text = self.matcher.grammar_from_regex(grammar.text)
                case "lark":
                    text = self.matcher.grammar_from_lark(grammar.text)
        except ValueError as error:
            raise GrammarBroken(_reason(str(error))) from error
        matcher = self.matcher(self.tokenizer, text, limits=self.limits, log_level=0)
        if not matcher.is_error():
            # The first mask may cost more than all that follow; the library keeps what it made.
            matcher.compute_bitmask()
        if matcher.is_error():
            raise GrammarBroken(_reason(matcher.get_error()))
        return matcher


def _load(path: Path, vocab_size: int, eos_ids: list[int]) -> _Library:
    # For the first grammar: most engines see none.
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer  # noqa: PLC0415

    source = path.read_text(encoding="utf-8-sig")
    tokenizer = LLTokenizer(source, n_vocab=vocab_size, eos_token=eos_ids)
    limits = LLParserLimits(
        initial_lexer_fuel=_COMPILE_FUEL,
        step_lexer_fuel=_STEP_FUEL,
        step_max_items=_STEP_ITEMS,
        max_lexer_states=_MAX_STATES,
        # It would repeat the user's schema.
        verbose_errors=False,
    )
    gap = tokenizer.tokenize_str(_GAP)
    vocabulary = GrammarVocabulary(vocab_size, gap[0] if len(gap) == 1 else None, tuple(eos_ids))
    return _Library(LLMatcher, tokenizer, limits, vocabulary)


def _reason(text: str) -> str:
    """One line of bounded length."""
    return " ".join(text.split())[:_MAX_REASON_CHARS]
