"""Writes training data while the model trains: `python -m training.shard_writer`.

Owns one stream of cases: generates, renders, encodes and packs them and writes shards, or writes
their plain text for the tokenizer. Files are renamed into place when complete. A stream depends
only on the seed and its number. Must not know torch, whose import would cost each of these
processes seconds and memory.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import Tokenizer

from training.data import examples, long_examples
from training.data.example import TrainingExample
from training.pack import Packer, Rows, document
from training.render import load_template, render
from training.tokenizer import END_OF_TEXT, token_id

STREAM_STRIDE: Final = 1_000
"""The seed of stream i of seed s is s * STREAM_STRIDE + i."""

SAMPLE_STREAM: Final = 500
"""Streams from this number on are the tokenizer's sample."""

LONG_STREAM: Final = 700
"""Streams from this number on are long conversations."""

_EXAMPLES_PER_CALL: Final = 64
_LONGEST: Final = 0.94
"""Target length of a long conversation as a share of a row; its tokens are only estimated."""

_MAX_WAITING: Final = 6
_POLL_S: Final = 0.1


def main(arguments: list[str]) -> int:
    """Run one stream until its parent is gone or, for a sample, until it is complete."""
    parser = argparse.ArgumentParser(prog="python -m training.shard_writer")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--stream", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sample", type=int, help="number of texts; then no shards are made")
    parser.add_argument("--row-length", type=int, default=0)
    parser.add_argument("--rows", type=int, default=0, help="rows in a shard")
    parser.add_argument("--least", type=int, help="tokens of the shortest long conversation")
    given = parser.parse_args(arguments)
    seed = given.seed * STREAM_STRIDE + given.stream
    stream = examples(seed, "train")
    if given.least is not None:
        stream = long_examples(seed, "train", given.least, int(_LONGEST * given.row_length))
    if given.sample is not None:
        _write_sample(stream, given.sample, given.out)
        return 0
    os.nice(5)  # the trainer, which keeps the GPU busy, comes first
    tokenizer = Tokenizer.from_file(str(given.out / "tokenizer.json"))
    packer = Packer(given.row_length, token_id(tokenizer, END_OF_TEXT))
    rows = _rows(stream, tokenizer, packer)
    parent = os.getppid()
    number = 0
    while os.getppid() == parent:
        shard = np.stack(list(islice(rows, given.rows)))
        name = f"s{given.stream:03d}-{number:06d}"
        counts = np.array([packer.num_documents, packer.num_dropped])
        with (given.out / f"{name}.part").open("wb") as file:
            np.savez(file, rows=shard, counts=counts)
        (given.out / f"{name}.part").rename(given.out / f"{name}.npz")
        number += 1
        _wait_for_room(given.out, given.stream, parent)
    return 0


def _write_sample(stream: Iterator[TrainingExample], count: int, path: Path) -> None:
    template = load_template()
    texts = ["".join(text for text, _ in render(case, template)) for case in islice(stream, count)]
    path.write_text(json.dumps(texts), encoding="utf-8")


def _rows(
    stream: Iterator[TrainingExample], tokenizer: Tokenizer, packer: Packer
) -> Iterator[Rows]:
    template = load_template()
    while True:
        cases = [render(case, template) for case in islice(stream, _EXAMPLES_PER_CALL)]
        texts = [text for case in cases for text, _ in case]
        encoded = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        for case in cases:
            pieces = [(next(encoded).ids, trained) for _, trained in case]
            # Tokens after the last answer are never read: the document ends with it.
            yield from packer.add(document(pieces[:-1]))


def _wait_for_room(out: Path, stream: int, parent: int) -> None:
    """Wait until the data loader has read enough of the shards."""
    while os.getppid() == parent and len(list(out.glob(f"s{stream:03d}-*.npz"))) >= _MAX_WAITING:
        time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
