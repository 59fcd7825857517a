"""`python -m benchmarks.prompt_path.words`: new texts, by the tokenizer and word by word.

Owns three kinds of text of 1,500 characters: the prompt path's own words, this project's code, and
its prose. Three quarters of each teach the memory of words, the rest is measured, each text once
and both ways in turn. Must not know prompts.
"""

import argparse
import os
import random
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.prompt_path.cases import prose
from benchmarks.prompt_path.gateway import FILES
from gateway.prompt.tokenizer import Encoder
from gateway.prompt.word_breaks import word_breaks
from gateway.prompt.word_cache import WordMemory
from protocol.tokens import pack_tokens

ROOT: Final = Path(__file__).parents[2]
CHARS: Final = 1_500
MAX_TEXTS: Final = 2_000


def main(argv: list[str] | None = None) -> None:
    """Measure and print a table. Fails if one text has other ids."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prompt_path.words")
    parser.parse_args(argv)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as the gateway's process has it
    rng = random.Random(5)
    print("| texts | number | tokenizer, us | words, us | new pieces per text |")
    print("|---|---|---|---|---|")
    _measure("made of 180 words", [prose(rng, CHARS) for _ in range(400)])
    _measure("code", _cut(rng, ROOT.glob("[bghktw]*/**/*.py")))
    _measure("prose", _cut(rng, [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]))


def _cut(rng: random.Random, files: Iterable[Path]) -> list[str]:
    whole = [path.read_text(encoding="utf-8") for path in sorted(files)]
    texts = [text[at : at + CHARS] for text in whole for at in range(0, len(text) - CHARS, CHARS)]
    rng.shuffle(texts)
    return texts[:MAX_TEXTS]


def _measure(name: str, texts: list[str]) -> None:
    encoder = Encoder((FILES / "tokenizer.json").read_bytes())
    breaks = word_breaks(encoder.tokenizer)
    assert breaks is not None
    memory = WordMemory(breaks, encoder.encode_texts)
    taught = len(texts) * 3 // 4
    for text in texts[:taught]:
        memory.learn(memory.spell([text]))
    whole_s, words_s, pieces = [], [], []
    for text in texts[taught:]:
        began = time.thread_time()
        whole = pack_tokens(encoder.encode_texts([text])[0])
        then = time.thread_time()
        spelling = memory.spell([text])
        memory.learn(spelling)
        words_s.append(time.thread_time() - then)
        whole_s.append(then - began)
        pieces.append(len(spelling.pieces))
        assert spelling.packed == [whole], text
    costs = f"{_quartile_us(whole_s):.0f} | {_quartile_us(words_s):.0f}"
    print(f"| {name} | {len(texts)} | {costs} | {statistics.mean(pieces):.1f} |")


def _quartile_us(spans_s: list[float]) -> float:
    """The lower quartile: whoever shares the machine takes its caches."""
    return 1e6 * statistics.quantiles(spans_s, n=4)[0]


if __name__ == "__main__":
    main()
