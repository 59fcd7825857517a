"""`python -m benchmarks.token_path`: CPU per token from an engine's frame to the bytes of a client.

Frames of one token per stream, as engines send them, go through the gateway's own decoding, the
attempts that wait, detokenising, stops, thoughts, text and calls, formatting, and
`ResponseWriter.write`; the
sockets at both ends are left out. Thread CPU time, the median over steps, in microseconds.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import trio
import trio.testing

from benchmarks.formatting.answers import ANSWERS, TOOLS, Answer
from benchmarks.machine import describe_machine
from config import GatewayConfig
from gateway.api.chat_formatter import CHAT
from gateway.api.chat_parser import parse_chat_request
from gateway.api.chat_request import ChatRequest
from gateway.http.edge import Edge, Emit, FleetGauges
from gateway.http.metrics import Metrics
from gateway.http.response_writer import Look, write_batch
from gateway.http.responses import Header
from gateway.http.streaming import StreamedAnswer
from gateway.link.attempt import Attempt
from gateway.link.attempts import Attempts
from gateway.output.output_pipeline import OutputPipeline
from gateway.output.reasoning import ReasoningSplitter
from gateway.output.sequence_output import SequenceOutput
from gateway.output.stop_strings import StopMatcher
from gateway.output.tools import ToolParser
from gateway.prompt.model_text import ModelText
from gateway.routing.lease import Lease
from gateway.telemetry.counters import Counters
from gateway.telemetry.event_feed import EventFeed
from gateway.turn.caller import Caller
from gateway.turn.detached_requests import Claim, DetachedRequests
from protocol.ids import RequestId, WorkerId
from protocol.messages import Finished, TokenItem, Tokens
from protocol.tokens import pack_token
from protocol.wire import decode_from_worker, encode

MODEL: Final = Path(__file__).parents[1] / "config" / "builtin" / "herma-tiny"
WORKER: Final = WorkerId(bytes(16))
BODY: Final = b'{"model":"m","messages":[{"role":"user","content":"Hi"}],"stream":true}'


class _CountingPush:
    """A client that takes everything at once."""

    is_gone = False
    wrote_at = 0.0
    extra_headers: Sequence[Header] = ()

    def __init__(self) -> None:
        self.num_bytes = 0

    def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """See `ResponseWriter`."""

    def open(self, status: int, headers: Sequence[Header]) -> None:
        """See `ResponseWriter`."""

    def watch(self, look: Look, at: float) -> None:
        """See `ResponseWriter`."""

    def unwatch(self) -> None:
        """See `ResponseWriter`."""

    def write(self, chunk: bytes) -> bool:
        """See `ResponseWriter`."""
        self.num_bytes += len(chunk)
        return True

    def end(self, last: bytes = b"") -> None:
        """See `ResponseWriter`."""

    def whole_body(self) -> bytes | None:
        """See `ResponseWriter`."""

    async def flushed(self) -> None:
        """See `ResponseWriter`."""


class _Streams:
    """`num_streams` answers at once, from one worker."""

    def __init__(self, text: ModelText, answer: Answer, num_streams: int) -> None:
        self._text = text
        self._form = text.answer_format(answer.form)
        self.ids = list(text.encoder.encode_text(answer.text))
        self.request_ids = [RequestId(at.to_bytes(16, "big")) for at in range(num_streams)]
        self._free_ids = iter(self.request_ids)
        self._orphanage = DetachedRequests(EventFeed(), grace_s=1.0)
        self.attempts = Attempts(Counters())
        self._edge = Edge(
            config=GatewayConfig(),
            keys=(),
            version="0",
            run_turn=self._run_turn,
            models=lambda: (),
            gauges=FleetGauges,
            draining=lambda: False,
        )
        self._metrics = Metrics(self._edge.models, self._edge.gauges)

    async def run(self) -> list[float]:
        """Answer all; the CPU seconds of each step."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._orphanage.run)
            async with trio.open_nursery() as answering:
                for _ in self.request_ids:
                    answering.start_soon(self._answer)
                await trio.testing.wait_all_tasks_blocked()
                spans = self._all_steps()
            nursery.cancel_scope.cancel()
        return spans

    def _all_steps(self) -> list[float]:
        spans: list[float] = []
        for step, token_id in enumerate(self.ids):
            packed = pack_token(token_id)
            items = tuple(TokenItem(one, 1, step, packed) for one in self.request_ids)
            spans.append(self._take(encode(Tokens(step, items))))
        for one in self.request_ids:
            ended = Finished(one, 1, "stop", 1, 0, len(self.ids))
            assert self.attempts.finished(WORKER, ended) is None
        return spans

    def _take(self, frame: bytes) -> float:
        start = time.thread_time()
        message = decode_from_worker(frame)
        assert isinstance(message, Tokens)
        with write_batch:
            gap = self.attempts.tokens(WORKER, message.items)
        assert gap is None
        return time.thread_time() - start

    async def _answer(self) -> None:
        push = _CountingPush()
        request = parse_chat_request(BODY)
        await StreamedAnswer(self._edge, self._metrics, request, Caller(), CHAT, push).run()
        assert push.num_bytes > 100 * len(self.ids)

    async def _run_turn(self, request: ChatRequest, _caller: Caller, emit: Emit) -> None:
        request_id = next(self._free_ids)
        claim = Claim("", request_id, request.model)
        await self._orphanage.host(claim, lambda take: self._work(request_id, take), emit)

    async def _work(self, request_id: RequestId, emit: Emit) -> None:
        output = SequenceOutput(self._pipeline(), emit, max_tokens=2**20, end_ids=frozenset())
        place = Lease(0, WORKER, 0, "benchmark")
        attempt = Attempt(
            place,
            request_id,
            1,
            expected=0,
            on_tokens=output.take_item,
            on_accepted=lambda _: None,
        )
        self.attempts.add(attempt)
        await attempt.wait()
        output.finish("stop")
        self.attempts.remove(attempt)

    def _pipeline(self) -> OutputPipeline:
        form = self._form
        assert form.tools is not None
        return OutputPipeline(
            self._text.decoder(form),
            StopMatcher(()),
            ToolParser(form.tools, bytes, TOOLS),
            reasoning=ReasoningSplitter(form.reasoning, enders=form.enders),
        )


def main(argv: list[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.token_path", description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    text = ModelText({path.name: path.read_bytes() for path in MODEL.iterdir() if path.is_file()})
    machine = describe_machine(("trio", "msgspec", "tokenizers"))
    print(f"{machine['cpu']}; {machine['system']}\n")
    print("| tokens of | streams | us per token |")
    print("|---|---|---|")
    kinds = {answer.kind: answer for answer in reversed(ANSWERS)}
    rows: list[dict[str, Any]] = []
    for answer, num_streams in itertools.product(kinds.values(), arguments.streams):
        spans = trio.run(_Streams(text, answer, num_streams).run)
        us = 1e6 * statistics.median(spans) / num_streams
        rows.append({"kind": answer.kind, "streams": num_streams, "us": us})
        print(f"| {answer.kind} | {num_streams} | {us:.2f} |")
    if arguments.json:
        report = {"command": "python -m benchmarks.token_path", "machine": machine, "rows": rows}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
