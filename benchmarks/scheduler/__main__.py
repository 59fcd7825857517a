"""`python -m benchmarks.scheduler`: the CPU's part of a decode step, by running sequences.

`plan` and `commit` are the scheduler's, messages included; `turn` is all that the engine's loop
does between two results, encoded frames included, but for the runner and the socket. Medians, in
microseconds: a shared machine makes means worthless.
"""

import argparse
import statistics
from collections.abc import Sequence

from benchmarks.machine import describe_machine
from benchmarks.scheduler.steps import decode_steps
from benchmarks.scheduler.turns import turn_times


def main(argv: list[str] | None = None) -> None:
    """Measure and print a table."""
    arguments = _parser().parse_args(argv)
    machine = describe_machine()
    print(f"{machine['cpu']}; {machine['system']}\n")
    print("| lookahead | sequences | plan us | commit us | both us | turn us |")
    print("|---|---|---|---|---|---|")
    for lookahead in (0, 1):
        for num_seqs in arguments.sequences:
            cost = decode_steps(num_seqs, arguments.steps, lookahead)
            both = [sum(times) for times in zip(*cost, strict=True)]
            turns = turn_times(num_seqs, arguments.steps, lookahead)
            figures = " | ".join(map(_median_us, (*cost, both, turns)))
            print(f"| {lookahead} | {num_seqs} | {figures} |")


def _median_us(times_s: Sequence[float]) -> str:
    return f"{1e6 * statistics.median(times_s):.1f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler", description=__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--steps", type=int, default=1000)
    return parser


if __name__ == "__main__":
    main()
