"""`python -m benchmarks.gateway.shared_ledger`: the wait of processes for each other's commits.

Owns processes that write reservations to one ledger at the same time, each a batch with a limit and
the end of the batch before it, with a pause between. Needs a real disk: the time of a sync counts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.gateway.job import spread
from benchmarks.gateway.table import in_columns
from gateway.store import BalanceKey, Cap, LedgerEntry, LedgerStore, ReservationClaim, Settlement

NUM_WRITES: Final = 300
PAUSE_S: Final = 0.001
_DAY: Final = "2026-11-21"
_CAPS: Final = (Cap(BalanceKey("provider", "cloud", _DAY), 10**12),)


def main(words: list[str] | None = None) -> int:
    """Run and print the time of a write, in milliseconds."""
    arguments = _arguments(words)
    rows = [["processes", "p50 ms", "p99 ms", "most ms", "CPU us"]]
    for count in arguments.processes:
        with TemporaryDirectory(prefix="herma-bench-", dir=arguments.folder) as folder:
            starts = [(Path(folder) / "ledger.sqlite", arguments.writes)] * count
            context = multiprocessing.get_context("spawn")
            with context.Pool(count) as pool:
                results = pool.starmap(write_many, starts, chunksize=1)
        times = spread([one for times_s, _ in results for one in times_s])
        cpu_us = sum(cpu_s for _, cpu_s in results) * 1e6 / times.count
        figures = (times.p50, times.p99, times.most)
        rows.append([str(count), *(f"{ms:.1f}" for ms in figures), f"{cpu_us:.0f}"])
    print(in_columns(rows))
    return 0


def write_many(path: Path, num_writes: int) -> tuple[list[float], float]:
    """The seconds that each write took, and the CPU seconds of all."""
    store = LedgerStore(path, "USD")
    times_s: list[float] = []
    cpu_s = time.process_time()
    for number in range(1, num_writes + 1):
        ends = [Settlement(number - 1, _entry(cost=1, is_settled=True))]
        claim = ReservationClaim(number, _entry(cost=2, is_settled=False), _CAPS)
        started_at = time.perf_counter()
        refused = store.write([claim], ends, [])
        times_s.append(time.perf_counter() - started_at)
        assert not refused
        time.sleep(PAUSE_S)
    cpu_s = time.process_time() - cpu_s
    store.close()
    return times_s, cpu_s


def _entry(*, cost: int, is_settled: bool) -> LedgerEntry:
    return LedgerEntry(_DAY, "k", "m", "cloud", is_settled, True, 1, 1000, 0, 50, cost)


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.shared_ledger")
    parser.add_argument(
        "--processes", type=lambda text: [*map(int, text.split(","))], default=[1, 2, 4]
    )
    parser.add_argument("--writes", type=int, default=NUM_WRITES, metavar="N")
    parser.add_argument("--folder", type=Path, help="where the ledger is; by default temporary")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
