"""`python -m tests.workers.engine.parallel.host_answers DIR RANKS BYTES`: answers beside a host
cache, as JSON.

Run as a process of its own, because ranks meet once in the life of a process. Prints the tokens of
requests that come twice to a card that does not hold them all, how many tokens of prompts
were found, how many pages came from the host, and how many sequences were preempted.
"""

import json
import os
import sys
from pathlib import Path
from time import sleep
from typing import Any

import torch

from benchmarks.drive import Drive
from protocol.sampling import SamplingParams
from tests.workers.engine.parallel.answers import (
    FEW_BLOCKS,
    NUM_LONG,
    SAVED,
    configured,
    load,
    prompts,
)

TIMES = 2


def host_answers(model_dir: Path, num_ranks: int, host_bytes: int) -> dict[str, Any]:
    """With `host_bytes` 0 there is no host cache."""
    keys = {"dtype": "float32", "host_bytes": host_bytes}
    runner: Any = load(configured(model_dir, num_ranks, **keys))
    drive = Drive(runner, max_seqs=4, save_policy=SAVED, num_blocks=FEW_BLOCKS)
    sampling = SamplingParams(max_tokens=NUM_LONG, temperature=0.0, ignore_eos=True)
    for _ in range(TIMES):
        for number, prompt in enumerate(prompts()):
            drive.submit(prompt, sampling, seed=number)
        while drive.step() is not None or drive.is_copying:
            sleep(1e-4)  # other ranks' copies end in their own time
    drive.finish()
    return {
        "tokens": [answer.outputs for answer in drive.answers.values()],
        "found": sum([answer.cached_tokens for answer in drive.answers.values()]),
        "preempted": drive.num_preemptions,
        "loaded": 0 if drive.tier is None else drive.tier.num_loaded,
    }


def main() -> None:
    """Answer, and print."""
    torch.set_num_threads(1)
    model_dir, num_ranks, host_bytes = sys.argv[1:]
    print(json.dumps(host_answers(Path(model_dir), int(num_ranks), int(host_bytes))), flush=True)
    os._exit(0)  # as an engine ends: threads of the library wait for ranks that have gone


if __name__ == "__main__":
    main()
