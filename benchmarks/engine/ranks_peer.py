"""`PYTHON benchmarks/engine/ranks_peer.py CONFIG RANKS [--fp8]`: the rows of `ranks` by vLLM.

Owns the same requests to another engine, with its defaults and random weights, and prints
milliseconds by name as JSON in its last line. Run by a Python that has vLLM and need not have
Herma: it must import nothing of ours.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

BATCHES = (1, 8, 64)
PROMPTS = (4096, 8192)
PROMPT = 128
OUTPUTS = 128
RUNS = 3


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path, help="config.json of a published shape")
    parser.add_argument("ranks", type=int)
    parser.add_argument("--fp8", action="store_true")
    arguments = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - behind what it reads of the environment

    folder = Path(tempfile.mkdtemp(prefix="ranks-peer-"))
    shutil.copy(arguments.config, folder / "config.json")
    llm = LLM(
        str(folder), load_format="dummy", skip_tokenizer_init=True, max_model_len=40_960,
        gpu_memory_utilization=0.9, max_num_seqs=256, max_num_batched_tokens=16_384, seed=0,
        tensor_parallel_size=arguments.ranks, quantization="fp8" if arguments.fp8 else None,
    )  # fmt: skip
    rng = random.Random(0)

    def ask(count: int, length: int, outputs: int) -> float:
        prompts = [
            {"prompt_token_ids": [rng.randrange(10_000) for _ in range(length)]}
            for _ in range(count)
        ]
        sampling = SamplingParams(
            temperature=0.0, ignore_eos=True, max_tokens=outputs, detokenize=False
        )
        began = time.perf_counter()
        llm.generate(prompts, sampling, use_tqdm=False)
        return 1e3 * (time.perf_counter() - began)

    found: dict[str, float] = {}
    for batch in BATCHES:
        steps, wholes = [], []
        for _ in range(1 + RUNS):
            first = ask(batch, PROMPT, 1)
            whole = ask(batch, PROMPT, OUTPUTS)
            steps.append((whole - first) / (OUTPUTS - 1))
            wholes.append(whole)
        found[f"decode step, batch {batch}"] = statistics.median(steps[1:])
    found[f"{BATCHES[-1]} answers of {OUTPUTS} tokens"] = statistics.median(wholes[1:])
    for length in PROMPTS:
        firsts = [ask(1, length, 1) for _ in range(1 + RUNS)]
        found[f"first token, {length} tokens cold"] = statistics.median(firsts[1:])
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
