"""Compiles what a drafter launches on a card that is not there: with an `arch` such as 90.

Run as a program, without the interpreter: `card_checks ARCH KIND ROOM`. The dry run of a worker
that drafts by a drafter of true sizes, whose config.json it writes to ROOM. Prints one JSON object:
the kernels that drafts add, the most shared memory that one takes in bytes, and the errors.
"""

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.speculation.synthetic import drafter_config
from config import SpeculationConfig, WorkerConfig
from kernels.recorder import pretend_device
from tests.workers.engine.compile.card_checks import compiled
from workers.engine.compile.dry_run import dry_run
from workers.engine.models.model_config import read_model_config
from workers.model_dir import dummy_dir

MODEL = "dummy:qwen3-8b"


def main() -> None:
    """The largest of the lists is that of verifying and drafting."""
    arch, kind, room = sys.argv[1:]
    directory = dummy_dir(MODEL)
    config = drafter_config(kind, read_model_config(directory))
    (Path(room) / "config.json").write_text(json.dumps(config))
    pretend_device(int(arch))

    def found_for(speculation: SpeculationConfig) -> dict[str, object]:
        worker = WorkerConfig(
            "check", MODEL, "check", (), token_budget=2048, device="cuda", max_seqs=32,
            kv_tokens=65_536, speculation=speculation,
        )  # fmt: skip
        return {kernel.id: kernel for part in dry_run(worker, directory) for kernel in part}

    known = found_for(SpeculationConfig("ngram"))
    kernels = found_for(SpeculationConfig(room))
    added = [kernel for key, kernel in kernels.items() if key not in known]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("fork")) as pool:
        found = list(pool.map(compiled, added))
    report = {
        "count": len(found),
        "names": sorted({name for name, *_ in found}),
        "most_bytes": max(shared for _, shared, _ in found),
        "errors": [error for *_, error in found if error],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
