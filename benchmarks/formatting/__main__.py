"""`python -m benchmarks.formatting`: CPU per streamed token, from its id to the bytes of its chunk.

One token per step, as engines send them, with the built-in model's own tokens: detokenised, matched
against a stop string, split into thoughts, text and calls, and written as server-sent events.
Medians over answers of the thread's CPU time, in microseconds. Fails over the bars.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.formatting.answers import ANSWERS, TOOLS, Answer
from benchmarks.machine import describe_machine
from gateway.api.chat_formatter import ChunkFormatter
from gateway.api.events import TurnEvent
from gateway.output.output_pipeline import OutputPipeline
from gateway.output.reasoning import ReasoningSplitter
from gateway.output.sequence_output import SequenceOutput
from gateway.output.stop_strings import StopMatcher
from gateway.output.tools import ToolParser
from gateway.prompt.model_text import ModelText
from protocol.messages import TokenItem
from protocol.tokens import pack_token

MODEL: Final = Path(__file__).parents[2] / "config" / "builtin" / "herma-tiny"
MAX_US: Final = {"text": 5.0, "thoughts": 5.0, "call": 10.0}
"""The bars, by kind of token."""


def main(argv: list[str] | None = None) -> None:
    """Measure, print a table, and fail if a bar is missed."""
    arguments = _parser().parse_args(argv)
    text = ModelText({path.name: path.read_bytes() for path in MODEL.iterdir() if path.is_file()})
    machine = describe_machine(("tokenizers", "msgspec"))
    print(f"{machine['cpu']}; {machine['system']}\n")
    print("| tokens of | format | tokens | parsing us | with formatting us | bar us |")
    print("|---|---|---|---|---|---|")
    rows = [_row(answer, text, arguments.answers) for answer in ANSWERS]
    for row in rows:
        bar = f"{MAX_US[row['kind']]:.0f}"
        figures = f"{row['parsing_us']:.2f} | {row['all_us']:.2f} | {bar}"
        print(f"| {row['kind']} | {row['format']} | {row['tokens']} | {figures} |")
    if arguments.json:
        report = {"command": "python -m benchmarks.formatting", "machine": machine, "rows": rows}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    if any(row["all_us"] > MAX_US[row["kind"]] for row in rows):
        sys.exit("a bar is missed")


def _row(answer: Answer, text: ModelText, num_answers: int) -> dict[str, Any]:
    ids = list(text.encoder.encode_text(answer.text))
    form = text.answer_format(answer.form)

    items = [TokenItem(bytes(16), 1, at, pack_token(one)) for at, one in enumerate(ids)]

    def take_all(emit: Callable[[TurnEvent], object]) -> None:
        assert form.tools is not None
        thoughts = ReasoningSplitter(form.reasoning, enders=form.enders)
        parser = ToolParser(form.tools, bytes, TOOLS)
        pipeline = OutputPipeline(
            text.decoder(form), StopMatcher(("\n\nUser:",)), parser, reasoning=thoughts
        )
        output = SequenceOutput(pipeline, emit, max_tokens=len(ids), end_ids=frozenset())
        for item in items:
            output.take_item(item)

    def parse() -> None:
        take_all(lambda _: None)

    def parse_and_format() -> None:
        take_all(ChunkFormatter("chatcmpl-1", 0, "m").format)

    return {
        "kind": answer.kind,
        "format": answer.form,
        "tokens": len(ids),
        "parsing_us": _median_us(parse, num_answers) / len(ids),
        "all_us": _median_us(parse_and_format, num_answers) / len(ids),
    }


def _median_us(work: Callable[[], None], times: int) -> float:
    spans: list[float] = []
    for _ in range(times):
        start = time.thread_time()
        work()
        spans.append(time.thread_time() - start)
    return 1e6 * statistics.median(spans)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.formatting", description=__doc__)
    parser.add_argument("--answers", type=int, default=200, help="how often each is read")
    parser.add_argument("--json", type=Path)
    return parser


if __name__ == "__main__":
    main()
