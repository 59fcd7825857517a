"""The cost of a request, from its bytes to the frame for a worker, and the cost of new text.

Owns bodies of English words by a fixed seed, and the gateway's own parts up to the frame, with one
worker that is always free and the built-in model's tokenizer and template.
"""

import gc
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from benchmarks.micro.figures import MicroFigure, lower_quartile_us
from benchmarks.micro.routing import BLOCK_SIZE, idle_fleet
from config import Config, ModelConfig
from gateway.api.chat_parser import parse_chat_request
from gateway.api.request import ChatRequest
from gateway.app import build_services
from gateway.prompt.model_text import ModelText
from gateway.prompt.split_patterns import ascii_pattern
from gateway.prompt.tokenizer import Encoder
from gateway.prompt.word_cache import WordCache
from gateway.routing.effects import Assign, RouteRequest
from gateway.routing.models import ModelView
from gateway.turn.caller import Caller
from gateway.turn.preparation import Job, prepare
from gateway.turn.services import Services
from protocol.files_digest import files_digest
from protocol.hashing import root_digest
from protocol.ids import ID_BYTES, WorkerId
from protocol.messages import Submit
from protocol.tokens import pack_tokens
from protocol.wire import encode

MODEL: Final = "herma-tiny"
ROOT: Final = Path(__file__).parents[2]
FILES: Final = ROOT / "config" / "builtin" / MODEL
STAGES: Final = ("parse", "render", "tokenise", "hash", "route", "submit")
MAX_US: Final = {"64 KiB, second turn": 2_000.0}
"""`herma bench gateway` has the bars of small requests, for the whole request."""

NUM_TOOLS: Final = 24
TEXT_CHARS: Final = 1_500
MAX_TEXTS: Final = 2_000
_TEXT: Final = (
    "the a of and to in is that it for was on are with as they be at this have from or one had by "
    "word but not what all were we when your can said there use an each which she do how their if "
    "will up other about out many then them these so some her would make like him into time has "
    "look two more write go see number no way could people my than first water been call who oil "
    "gateway sequence scheduler prefix tokenizer quantised latency throughput instrumentation "
    "server.py /var/log/syslog 127.0.0.1 42 1,024 x-request-id JSON `make test` (see below) naïve"
)


@dataclass(frozen=True, slots=True)
class PromptCase:
    """The `bodies` are measured, each once, after all of `before` were prepared."""

    name: str
    before: tuple[bytes, ...]
    bodies: tuple[bytes, ...]


def measure_prompts(quick: bool) -> Iterator[MicroFigure]:
    """CPU time of the process (including threads) for whole requests, and for each stage alone."""
    rng, num_bodies = random.Random(11), 4 if quick else 300
    for case in (
        _repeated(rng, num_bodies),
        _fresh(rng, num_bodies),
        _second_turn(rng, num_bodies=max(1, num_bodies // 10)),
    ):
        yield from trio.run(_measure, case)


async def _measure(case: PromptCase) -> list[MicroFigure]:
    """The figures of a case, by two fresh gateways: the second measurement must not find the bodies
    cached.
    """
    times_s = []
    async with _warmed(case) as path:
        for body in case.bodies:
            started_at = time.process_time()
            await path.submit(body)
            times_s.append(time.process_time() - started_at)
        num_bytes = path.text.prompts.num_bytes + path.services.digests.num_bytes
    async with _warmed(case) as path:
        stages = [await path.stages(body, time.thread_time) for body in case.bodies]
    whole = lower_quartile_us(times_s)
    return [
        MicroFigure(case.name, "bytes to Submit", whole, bar=MAX_US.get(case.name)),
        *(
            MicroFigure(case.name, name, lower_quartile_us([s[name] for s in stages]))
            for name in STAGES
        ),
        MicroFigure(case.name, "caches", num_bytes / 1e3, "KB"),
    ]


@asynccontextmanager
async def _warmed(case: PromptCase) -> AsyncIterator["_PromptPath"]:
    async with _prompt_path() as path:
        for body in case.before:
            await path.submit(body)
        gc.collect()
        yield path


def measure_words(quick: bool) -> Iterator[MicroFigure]:
    """New texts of 1,500 characters by the tokenizer and word by word, each once and both ways in
    turn; three quarters of each kind fill the word cache first.
    """
    rng = random.Random(5)
    kinds = {
        "text of 180 words": [_prose(rng, TEXT_CHARS) for _ in range(400)],
        "code": _cut(rng, ROOT.glob("[bghktw]*/**/*.py")),
        "prose": _cut(rng, [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]),
    }
    for name, texts in kinds.items():
        yield from _measure_texts(name, texts[:40] if quick else texts)


def _cut(rng: random.Random, files: Iterable[Path]) -> list[str]:
    whole = [path.read_text(encoding="utf-8") for path in sorted(files)]
    texts = [
        text[at : at + TEXT_CHARS]
        for text in whole
        for at in range(0, len(text) - TEXT_CHARS, TEXT_CHARS)
    ]
    rng.shuffle(texts)
    return texts[:MAX_TEXTS]


def _measure_texts(name: str, texts: list[str]) -> Iterator[MicroFigure]:
    encoder = Encoder((FILES / "tokenizer.json").read_bytes())
    pattern = ascii_pattern(encoder.tokenizer)
    assert pattern is not None
    cache = WordCache(encoder.tokenizer, pattern, encoder.encode_texts)
    num_taught = len(texts) * 3 // 4
    for text in texts[:num_taught]:
        cache.learn(cache.encode([text]))
    whole_s, words_s, num_new = [], [], 0
    for text in texts[num_taught:]:
        started_at = time.thread_time()
        whole = pack_tokens(encoder.encode_texts([text])[0])
        then = time.thread_time()
        encoded = cache.encode([text])
        cache.learn(encoded)
        words_s.append(time.thread_time() - then)
        whole_s.append(then - started_at)
        num_new += len(encoded.pieces)
        assert encoded.packed == [whole], text
    yield MicroFigure(name, "tokenizer", lower_quartile_us(whole_s))
    yield MicroFigure(name, "word cache", lower_quartile_us(words_s))
    yield MicroFigure(name, "new pieces per text", num_new / len(whole_s), "")


Clock = Callable[[], float]


class _PromptPath:
    """The path of a request up to the frame for the worker."""

    def __init__(self, services: Services, text: ModelText, digest: bytes) -> None:
        self.services = services
        self.text = text
        self._digest = digest
        self._dispatch, _ = idle_fleet(MODEL, ["w"])
        self._num_tickets = 0

    async def submit(self, body: bytes) -> bytes:
        """The frame for `body`, made in the way of a turn."""
        request = parse_chat_request(body)
        job = await prepare(self.services, request, Caller(), self._view())
        assert job is not None
        self._route(job)
        return encode(_submit(job))

    async def stages(self, body: bytes, clock: Clock) -> dict[str, float]:
        """The seconds of each stage. Work of threads is done in place."""
        started = [clock()]
        request = parse_chat_request(body)
        started.append(clock())
        segments = self._render(request)
        started.append(clock())
        prompts = self.text.prompts
        draft = prompts.draft(segments)
        packed = prompts.finish(draft, prompts.encode(draft))
        started.append(clock())
        self.services.digests.digests(root_digest(MODEL), packed, BLOCK_SIZE)
        started.append(clock())
        job = await prepare(self.services, request, Caller(), self._view())
        assert job is not None
        before_route = clock()
        self._route(job)
        before_encode = clock()
        encode(_submit(job))
        ends = [*started, before_encode + started[-1] - before_route]
        names = ("parse", "render", "tokenise", "hash", "route")
        spans = {name: ends[at + 1] - ends[at] for at, name in enumerate(names)}
        return {**spans, "submit": clock() - before_encode}

    def _render(self, request: ChatRequest) -> list[str]:
        now = datetime.now(tz=UTC)
        return self.text.render_chat(request.messages, request.tools, request.template_kwargs, now)

    def _view(self) -> ModelView:
        view = self._dispatch.fleet.find(MODEL)
        assert view is not None
        return msgspec.structs.replace(view, files_digest=self._digest)

    def _route(self, job: Job) -> None:
        self._num_tickets += 1
        ask = RouteRequest(
            ticket=self._num_tickets,
            model=job.model,
            key="",
            weight=1.0,
            session=None,
            digests=job.digests,
            prompt_tokens=job.prompt_tokens,
            max_tokens=job.sampling.max_tokens,
        )
        effects = self._dispatch.tickets.ask(ask, 1.0)
        assert any(isinstance(effect, Assign) for effect in effects), effects
        self._dispatch.tickets.release(ask.ticket, 2.0, 1)


@asynccontextmanager
async def _prompt_path() -> AsyncIterator[_PromptPath]:
    """A path whose texts are already built."""
    services = build_services(Config(models=(ModelConfig(name=MODEL),)), {})
    files = {p.name: p.read_bytes() for p in FILES.iterdir() if p.suffix in {".json", ".jinja"}}
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(services.files.run)
            digest = files_digest(files)
            services.files.put(WorkerId(bytes(16)), digest, files)
            yield _PromptPath(services, await services.files.text(digest), digest)
            nursery.cancel_scope.cancel()
    finally:
        services.link.close()


def _submit(job: Job) -> Submit:
    return Submit(
        request_id=bytes(ID_BYTES),
        attempt=1,
        model=job.model,
        prompt_ids=job.prompt,
        output_ids=b"",
        sampling=job.sampling,
        seed=job.seed,
    )


def _repeated(rng: random.Random, num_bodies: int) -> PromptCase:
    body = _body([_user(rng, 900)], max_tokens=16)
    return PromptCase("0.9 KB, repeated", (body,), (body,) * num_bodies)


def _fresh(rng: random.Random, num_bodies: int) -> PromptCase:
    bodies = tuple(_body([_user(rng, 900)], max_tokens=16) for _ in range(num_bodies))
    return PromptCase("0.9 KB, fresh", (_body([_user(rng, 900)], max_tokens=16),), bodies)


def _second_turn(rng: random.Random, num_bodies: int) -> PromptCase:
    """An agent's call after a tool's result: 64 KiB, half of which belong to the conversation
    alone.
    """
    tools = [_tool(rng, number) for number in range(NUM_TOOLS)]
    system = {"role": "system", "content": _prose(rng, 6_000)}
    before, bodies = [], []
    for _ in range(num_bodies):
        messages = [system]
        while len(_body(messages, tools=tools)) < 64 * 1024:
            messages += [_user(rng, 400), *_called(rng, 1_500), _assistant(rng, 300)]
        messages.append(_user(rng, 200))
        before.append(_body(messages, tools=tools, stream=True))
        bodies.append(_body([*messages, *_called(rng, 400)], tools=tools, stream=True))
    return PromptCase("64 KiB, second turn", tuple(before), tuple(bodies))


def _body(messages: list[dict[str, Any]], **fields: Any) -> bytes:  # noqa: ANN401
    return json.dumps({"model": MODEL, "messages": messages, **fields}).encode()


def _user(rng: random.Random, num_chars: int) -> dict[str, Any]:
    return {"role": "user", "content": _prose(rng, num_chars)}


def _assistant(rng: random.Random, num_chars: int) -> dict[str, Any]:
    return {"role": "assistant", "content": _prose(rng, num_chars)}


def _called(rng: random.Random, num_chars: int) -> list[dict[str, Any]]:
    """A tool call and its result."""
    call_id = f"call_{rng.randrange(10**9)}"
    arguments = json.dumps({"path": f"/tmp/{rng.randrange(10**6)}.txt", "limit": 20})
    function = {"name": f"tool_{rng.randrange(NUM_TOOLS)}", "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": _prose(rng, num_chars)},
    ]


def _tool(rng: random.Random, number: int) -> dict[str, Any]:
    properties: dict[str, dict[str, Any]] = {
        name: {"type": "string", "description": _prose(rng, 120)} for name in ("path", "mode")
    }
    properties["limit"] = {"type": "integer", "minimum": 1, "description": _prose(rng, 80)}
    function = {
        "name": f"tool_{number}",
        "description": _prose(rng, 400),
        "parameters": {"type": "object", "properties": properties, "required": ["path"]},
    }
    return {"type": "function", "function": function}


def _prose(rng: random.Random, num_chars: int) -> str:
    vocabulary = _TEXT.split()
    words: list[str] = []
    size = 0
    while size < num_chars:
        words.append(rng.choice(vocabulary))
        size += len(words[-1]) + 1
    return " ".join(words)[:num_chars]
