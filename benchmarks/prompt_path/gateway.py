"""The parts of a gateway that a request meets on its way to a worker.

Owns one worker that is always free, the built-in model's texts, and each stage by itself beside the
way that turns take. Must not know which requests come.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trio

from benchmarks.hello import BLOCK_SIZE, FILES_DIGEST, hello
from benchmarks.prompt_path.cases import MODEL
from config import Config, ModelConfig
from gateway.api.chat_parser import parse_chat_request
from gateway.api.chat_request import ChatRequest
from gateway.app import build_services
from gateway.prompt.model_text import ModelText
from gateway.routing.dispatch import Dispatch
from gateway.routing.effects import Assign, RouteRequest
from gateway.routing.models import ModelView
from gateway.turn.caller import Caller
from gateway.turn.preparation import Job, prepare
from gateway.turn.services import Services
from protocol.hashing import root_digest
from protocol.ids import ID_BYTES, WorkerId
from protocol.messages import BlocksSnapshot, Load, Submit
from protocol.wire import encode

FILES: Final = Path(__file__).parents[2] / "config" / "builtin" / MODEL
_WORKER: Final = WorkerId(bytes([1]) * ID_BYTES)

Clock = Callable[[], float]


class PromptPath:
    """Takes requests as far as the frame that goes to the worker."""

    def __init__(self, services: Services, text: ModelText) -> None:
        self.services = services
        self.text = text
        self._dispatch = _dispatch()
        self._num_tickets = 0

    async def submit(self, body: bytes) -> bytes:
        """The frame for `body`, by the way that turns take."""
        request = parse_chat_request(body)
        job = await prepare(self.services, request, Caller(), self._view())
        assert job is not None
        self._route(job)
        return encode(_submit(job))

    async def stages(self, body: bytes, clock: Clock) -> dict[str, float]:
        """The seconds of each stage. What a thread would do is done on the spot."""
        started = [clock()]
        request = parse_chat_request(body)
        started.append(clock())
        segments = self._render(request)
        started.append(clock())
        prompts = self.text.prompts
        draft = prompts.draft(segments)
        packed = prompts.finish(draft, prompts.encode(draft.missing))
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
        view = self._dispatch.model(MODEL)
        assert view is not None
        return view

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
        effects = self._dispatch.ask(ask, 1.0)
        assert any(isinstance(effect, Assign) for effect in effects), effects
        self._dispatch.release(ask.ticket, 2.0, 1)


@asynccontextmanager
async def prompt_path() -> AsyncIterator[PromptPath]:
    """A path whose texts are built."""
    services = build_services(Config(models=(ModelConfig(name=MODEL),)), {})
    files = {p.name: p.read_bytes() for p in FILES.iterdir() if p.suffix in {".json", ".jinja"}}
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(services.files.run)
            services.files.put(FILES_DIGEST, files)
            yield PromptPath(services, await services.files.text(FILES_DIGEST))
            nursery.cancel_scope.cancel()
    finally:
        services.link.close()


def _dispatch() -> Dispatch:
    dispatch = Dispatch((ModelConfig(name=MODEL),), max_queue=8, resume_wait_s=1.0)
    dispatch.register(_WORKER, hello("w", MODEL), 0.0)
    dispatch.heard(_WORKER, BlocksSnapshot(0, b""), 0.0)
    dispatch.heard(_WORKER, Load(1, 0, 0, 0, 0, 0, 0, 20.0, 10_000.0), 0.0)
    return dispatch


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
