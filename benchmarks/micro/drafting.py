"""The CPU time of a step's drafts from earlier text, by number of sequences and their tokens.

`copies`: each sequence repeats its prompt. `novel`: no sequence repeats anything, so each step
searches anew. `fleet`: sequences repeat what others have said. In each case the index takes in
texts of others too.
"""

import itertools
import random
import time
from array import array
from collections.abc import Iterator
from typing import Final

from benchmarks.micro.figures import MicroFigure, lower_quartile_us
from workers.scheduler import DraftCandidate
from workers.speculation import NUM_TEXT_SOURCES, MatchOdds, TextSource

BAR_US: Final = 1000.0
"""The bar of all drafts of a step."""

_VOCABULARY: Final = 50_000
_PERIOD: Final = 700
_CASES: Final = ((1, 2_000), (1, 60_000), (16, 8_000), (64, 8_000), (256, 4_000))


def measure(quick: bool) -> Iterator[MicroFigure]:
    """Lower quartiles of CPU time."""
    num_steps = 5 if quick else 200
    for (num_seqs, length), kind in itertools.product(_CASES, ("copies", "novel", "fleet")):
        if quick and num_seqs * length > 100_000:
            continue
        times_s = _steps(num_seqs, length, kind, num_steps)
        what = f"{num_seqs} sequences of {length}, {kind}"
        yield MicroFigure("drafts of a step", what, lower_quartile_us(times_s), bar=BAR_US)


def _steps(num_seqs: int, length: int, kind: str, num_steps: int) -> list[float]:
    rng = random.Random(num_seqs)
    source = TextSource(MatchOdds(NUM_TEXT_SOURCES), uses_fleet=True)
    said = [rng.randrange(_VOCABULARY) for _ in range(_PERIOD)]
    for seq in range(-40, 0):
        source.start(seq, array("I", said), 0)
        source.end(seq)
    for _ in range(80):
        source.offers([])
    texts = []
    for seq in range(num_seqs):
        if kind == "copies":
            own = [rng.randrange(_VOCABULARY) for _ in range(_PERIOD)]
            tokens = array("I", (own * (length // _PERIOD + 1))[:length])
        else:
            tokens = array("I", [rng.randrange(_VOCABULARY) for _ in range(length)])
        texts.append(tokens)
        source.start(seq, tokens, None)
    for seq in range(num_seqs, num_seqs + num_steps):  # texts that arrive during the measurement
        source.start(seq, array("I", [rng.randrange(_VOCABULARY) for _ in range(600)]), 0)
        source.end(seq)
    times_s = []
    for step in range(num_steps):
        began_at = time.process_time()
        source.offers([DraftCandidate(seq, 15) for seq in range(num_seqs)])
        times_s.append(time.process_time() - began_at)
        for tokens in texts:
            if kind == "copies":
                tokens.append(tokens[-_PERIOD])
            else:
                tokens.append(
                    said[step % _PERIOD] if kind == "fleet" else rng.randrange(_VOCABULARY)
                )
    return times_s
