"""`python -m training`: trains the built-in model."""

import argparse
import sys
from pathlib import Path

import torch

from benchmarks.result_file import result_file
from training.app import DEFAULT_MAX_TOKENS, TrainingJob, run
from training.data_loader import DataLoaderError
from training.settings import FULL, FURTHER, SMOKE


def main(arguments: list[str]) -> int:
    """Parse the arguments and run. Returns 1 with one line if the data fails."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=8.0, help="for all stages together")
    parser.add_argument(
        "--tokens", type=int, default=DEFAULT_MAX_TOKENS, help="different tokens at most"
    )
    parser.add_argument("--device", help="cuda or cpu (default: cuda if there is one)")
    parser.add_argument("--json", type=result_file, help="file for the log of the run")
    parser.add_argument("--plot", type=result_file, help="file for the loss curve, PNG")
    parser.add_argument("--start", type=Path, help="exported model to train further")
    parser.add_argument("--smoke", action="store_true", help="every stage, in miniature")
    given = parser.parse_args(arguments)
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    job = TrainingJob(
        out=given.out,
        seed=given.seed,
        minutes=given.minutes,
        max_tokens=given.tokens,
        device=torch.device(device),
        json_path=given.json,
        plot_path=given.plot,
        start=given.start,
    )
    try:
        run(job, SMOKE if given.smoke else FULL if given.start is None else FURTHER)
    except DataLoaderError as error:
        print(f"training: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
