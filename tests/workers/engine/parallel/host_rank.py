"""`python -m tests.workers.engine.parallel.host_rank DIR RANK ADDRESS WAIT_S [KEYS]`: one rank of
two that meet by an address, as on hosts of their own. KEYS is a JSON object of the worker's keys.

The first rank prints the answers to all prompts as JSON, then stays until its input ends. With
HERMA_TEST_WINDOWS in its environment a rank keeps only windows, of a model so small that it would
not pay.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from config import WorkerConfig
from protocol.errors import HermaError
from protocol.sampling import SamplingParams
from tests.workers.engine.parallel.answers import NUM_OUTPUTS, log_probabilities, part, tokens
from workers.engine.memory import window_size
from workers.engine.parallel.start import follow_host, load_leading


def _say(phase: str, _share: float, text: str) -> None:
    print(f"{phase}: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Meet, and answer or follow."""
    torch.set_num_threads(1)
    if "HERMA_TEST_WINDOWS" in os.environ:
        window_size.LEAST_SAVED = 0  # type: ignore[misc]
    model_dir, rank, address, wait_s, *more = sys.argv[1:]
    keys = {"group": "g", "ranks": 2, "tensor_parallel": 2, "dtype": "float32"}
    keys |= json.loads(more[0]) if more else {}
    config = WorkerConfig(
        name=f"tiny-{rank}", model=str(Path(model_dir)), serves="tiny", gateways=(), device="cpu",
        token_budget=256, max_seqs=8, block_size=16, kv_tokens=4096, context_length=1024,
        rank=int(rank), rendezvous=address, group_address="tcp://127.0.0.1:1", **keys,
    )  # fmt: skip
    try:
        if config.rank:
            follow_host(config, _say, float(wait_s))
            return
        runner = load_leading(config, _say, part, float(wait_s))
    except HermaError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
    greedy = SamplingParams(max_tokens=NUM_OUTPUTS, temperature=0.0, ignore_eos=True)
    assert (runner.windows is not None) == ("HERMA_TEST_WINDOWS" in os.environ)
    found: dict[str, Any] = {}
    if runner.windows is None:  # its plan names no blocks of windows
        found["logprobs"] = log_probabilities(runner)
    found["batched"] = tokens(runner, greedy, times=2)
    found["chunked"] = tokens(runner, greedy, token_budget=24)
    print(json.dumps(found), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
