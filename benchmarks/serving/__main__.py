"""`python -m benchmarks.serving`: a newcomer's first minute in figures.

Starts `make up` on an installed environment, waits for `ready`, then streams answers of the
built-in model at concurrency 1, 8 and 32. Every request has its own prompt (no prefix hits) and
asks for the same number of tokens; a failed request ends the benchmark.
"""

import argparse
import json
import statistics
import sys

import trio

from benchmarks.machine import describe_machine
from benchmarks.progress import progress_bar
from benchmarks.result_file import result_file
from benchmarks.serving.client import ServingSample, run_streams, tokens_per_s
from benchmarks.serving.server import running_herma

CONCURRENCIES = (1, 8, 32)


def main() -> int:
    """Print the table and, if asked, write it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per answer")
    parser.add_argument("--rounds", type=int, default=4, help="answers per stream at a time")
    parser.add_argument("--json", type=result_file, metavar="FILE")
    arguments = parser.parse_args()
    report: dict[str, object] = {"machine": describe_machine(), "tokens": arguments.tokens}
    with running_herma() as (base_url, ready_s):
        report["ready_s"] = round(ready_s, 2)
        rows = [
            _measure(base_url, concurrency, arguments.rounds, arguments.tokens)
            for concurrency in CONCURRENCIES
        ]
    report["rows"] = rows
    _print(report, rows)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _measure(base_url: str, concurrency: int, rounds: int, tokens: int) -> dict[str, float]:
    num_requests = max(concurrency * rounds, 8)

    progress = progress_bar(f"concurrency {concurrency:3}", num_requests)
    samples: list[ServingSample] = trio.run(
        run_streams, base_url, concurrency, num_requests, tokens, progress
    )
    firsts_ms = sorted(1000 * sample.first_token_s for sample in samples)
    return {
        "concurrency": concurrency,
        "requests": num_requests,
        "prompt_tokens": round(statistics.mean(sample.prompt_tokens for sample in samples)),
        "first_token_p50_ms": round(statistics.median(firsts_ms), 1),
        "first_token_p99_ms": round(firsts_ms[int(0.99 * (len(firsts_ms) - 1))], 1),
        "tokens_per_s": round(tokens_per_s(samples), 1),
    }


def _print(report: dict[str, object], rows: list[dict[str, float]]) -> None:
    print(f"\n`make up` (installed) to ready: {report['ready_s']} s\n")
    print("| concurrency | first token p50, ms | p99, ms | tokens/s |")
    print("|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['concurrency']} | {row['first_token_p50_ms']} | {row['first_token_p99_ms']} "
            f"| {row['tokens_per_s']} |"
        )
    print(f"\nprompts of {rows[0]['prompt_tokens']} tokens, answers of {report['tokens']}")
    print("; ".join(describe_machine().values()))


if __name__ == "__main__":
    sys.exit(main())
