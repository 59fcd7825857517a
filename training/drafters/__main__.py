"""`python -m training.drafters`: trains a drafter for the built-in model on its own data."""

import argparse
import os
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer

from training.attention import masked
from training.data_loader import DataLoader, DataLoaderError
from training.drafters.examples import ExampleChoice, Examples, Pool, examples, read
from training.drafters.files import write
from training.drafters.networks import Mtp, TrainedDFlash, TrainedDrafter
from training.drafters.train import reached, train
from training.export import TOKENIZER_NAME, load_weights
from training.model import Qwen3
from training.settings import FULL
from training.tokenizer import END_OF_TEXT, token_id

_DATA: Final = replace(
    FULL, row_length=2048, rows_per_batch=2, rows_per_shard=16, skip_share=0.3, long_least=1024,
    rows_per_long=1, long_rows_per_shard=2,
)  # fmt: skip
"""Two rows at a time, with gaps in the positions, so that all of the window is met."""

_INNER: Final = {"mtp": 768, "dflash": 256}
_LAYERS: Final = 2
_TAPS: Final = (1, 6)
_ANCHORS: Final = 1024
_CPU_ANCHORS: Final = 256
_HELD_OUT: Final = 24
"""Batches that are kept for the evaluation."""

_SMOKE: Final = replace(_DATA, row_length=512, rows_per_shard=4, long_least=512)

_READ_EVERY: Final = 2
"""Steps on a card for each batch that it reads; a CPU takes longer to read one than to train on it,
and reads all of them before.
"""

_SPARE_CORES: Final = 2
_MOST_STREAMS: Final = 4
"""Each makes half a million tokens a second, and a card reads 4,096 in every second step."""

_MAX_TOKENS: Final = 100_000_000


def main(arguments: list[str]) -> int:
    """Parse the arguments and run. Returns 1 with one line if the data fails."""
    parser = argparse.ArgumentParser(prog="python -m training.drafters", description=__doc__)
    parser.add_argument("kind", choices=sorted(_INNER))
    parser.add_argument("--target", type=Path, default=Path("config/builtin/herma-tiny"))
    parser.add_argument("--out", type=Path, required=True, help="directory of the drafter")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=10**9, help="at most so many")
    parser.add_argument("--anchors", type=int, help="of a batch, at most (1,024; on a CPU 256)")
    parser.add_argument("--batches", type=int, default=96, help="of 4,096 tokens, kept")
    parser.add_argument("--smoke", action="store_true", help="every stage, in miniature")
    parser.add_argument("--device", help="cuda or cpu (default: cuda if there is one)")
    given = parser.parse_args(arguments)
    device = torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        _run(given, device)
    except DataLoaderError as error:
        print(f"training: {error}", file=sys.stderr)
        return 1
    return 0


def _run(given: argparse.Namespace, device: torch.device) -> None:
    """Train, measure and write."""
    torch.manual_seed(given.seed)
    tokenizer = Tokenizer.from_file(str(given.target / TOKENIZER_NAME))
    data, num_held_out = (_SMOKE, 2) if given.smoke else (_DATA, _HELD_OUT)
    settings = replace(data, vocab_size=tokenizer.get_vocab_size())
    model = Qwen3(settings.shape, settings.vocab_size, masked).to(device)
    load_weights(model, given.target)
    model.requires_grad_(requires_grad=False)
    shape = replace(settings.shape, inner=_INNER[given.kind], num_layers=_LAYERS)
    drafter: TrainedDrafter
    if given.kind == "mtp":
        drafter = Mtp(shape).to(device)
    else:
        drafter = TrainedDFlash(shape, _TAPS, settings.shape.hidden).to(device)
    random = torch.Generator().manual_seed(given.seed)
    num_streams = min(_MOST_STREAMS, max(2, (os.cpu_count() or 1) - _SPARE_CORES))
    is_card = device.type == "cuda"
    anchors = given.anchors or (_ANCHORS if is_card else _CPU_ANCHORS)
    chosen = ExampleChoice(drafter.taps, drafter.depth, anchors, settings.row_length)
    pool, seconds = Pool(given.batches), 60 * given.minutes
    with DataLoader(settings, given.seed + 1000, num_streams, _MAX_TOKENS) as loader:
        loader.start(tokenizer.to_str())
        loader.next()  # which has a long row
        held_out = [examples(model, loader.next(), chosen, random) for _ in range(num_held_out)]
        for _ in range(given.batches):
            pool.add(read(model, loader.next(), chosen))
        print(f"read {given.batches} batches", flush=True)
        if is_card:
            steps = count()

            def fresh() -> Examples:
                if next(steps) % _READ_EVERY == 0:
                    pool.add(read(model, loader.next(), chosen))
                return pool.draw(chosen, random)

            num_steps = train(drafter, model, fresh, seconds, given.steps)
    if not is_card:
        # No text is made any more: it would take the cores from the training.
        num_steps = train(drafter, model, lambda: pool.draw(chosen, random), seconds, given.steps)
    drafter.load_state_dict({k: v.bfloat16().to(v.dtype) for k, v in drafter.state_dict().items()})
    found = reached(drafter, model, held_out)
    print(f"{num_steps} steps; acceptance {found.acceptance}, length {found.length}", flush=True)
    mask_id = token_id(tokenizer, END_OF_TEXT)
    size = write(given.out, drafter, model, shape, mask_id, found)
    print(f"{given.out}: {size} bytes", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
