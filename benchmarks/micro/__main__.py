"""`python -m benchmarks.micro [PART ...]`: CPU cost of single parts.

Prints a line per figure and fails if one is over its bar. `--quick` shows that everything runs:
its figures mean nothing and miss no bar.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.machine import describe_machine
from benchmarks.micro import (
    drafting,
    outputs,
    prompts,
    reuse,
    routing,
    scheduling,
    sharing,
    verifying,
)
from benchmarks.micro.figures import MicroFigure
from benchmarks.result_file import result_file

PARTS: Final[dict[str, Callable[[bool], Iterator[MicroFigure]]]] = {
    "prompt": prompts.measure_prompts,
    "words": prompts.measure_words,
    "output": outputs.measure,
    "routing": routing.measure,
    "scheduler": scheduling.measure,
    "sharing": sharing.measure,
    "drafts": drafting.measure,
    "reuse": reuse.measure,
    "verifying": verifying.measure,
}


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write JSON if asked. Returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--json", type=result_file, metavar="FILE")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no part is named {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as in the gateway's process
    machine = describe_machine(("trio", "msgspec", "tokenizers", "jinja2"))
    print(f"{machine['cpu']}; {machine['system']}\n\n| part | case | what | cost | bar |")
    print("|---|---|---|---|---|")
    rows = []
    is_missed = False
    for part in arguments.parts or PARTS:
        for figure in PARTS[part](arguments.quick):
            bar = "" if figure.bar is None else f"{figure.bar:g}"
            cost = f"{figure.value:.4g} {figure.unit}"
            print(f"| {part} | {figure.case} | {figure.what} | {cost} | {bar} |", flush=True)
            rows.append({"part": part, **figure._asdict()})
            is_missed |= figure.is_missed and not arguments.quick
    if arguments.json is not None:
        report = {"machine": machine, "figures": rows}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
