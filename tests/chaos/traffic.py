"""Streaming clients in a loop, each answer held against the undisturbed one.

Owns prompts, clients, what every stream received when, and what was wrong with it. Must not know
faults nor processes.
"""

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import msgspec
import trio

from tests.fakes.checked_http import checked_async_client
from tests.fakes.stream_checker import StreamFault

NUM_CLIENTS = 16
TOKENS = (80, 240)
"""Answers differ in length, so that at each moment some begin, some end, some are in the middle."""

SILENCE_S = 90.0
"""Longer than any restart; a stream that says nothing for so long has failed."""

Answers = dict[int, tuple[str, str, str]]
"""What an undisturbed answer shows, text, thought and finish, by the prompt's number."""

CHAT: Final = "/chat/completions"
RESPONSES: Final = "/responses"
MESSAGES: Final = "/messages"

_WORDS = ("stone", "river", "gate", "lamp", "ship", "market", "winter", "letter", "bridge", "song")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request whose answer is the same each time: greedy, or drawn with a seed of its own."""

    number: int
    body: dict[str, Any]
    path: str = CHAT


def make_prompts(
    count: int,
    seed: int,
    tokens: tuple[int, int] = TOKENS,
    paths: tuple[str, ...] = (CHAT,),
    words: tuple[int, int] = (5, 80),
) -> list[Prompt]:
    """Prompts of many lengths, half of them with one long prefix in common, for the APIs at `paths`
    by turns. Two of three are greedy; every third is sampled, because a random model's greedy text
    repeats itself and would hide an error of position.
    """
    rng = random.Random(seed)
    shared = " ".join(rng.choices(_WORDS, k=60))
    prompts = []
    for number in range(count):
        own = " ".join(rng.choices(_WORDS, k=rng.randint(*words)))
        content = f"{shared if number % 2 else ''} {number}: {own}"
        drawn = {"temperature": 1.0, "seed": number} if number % 3 == 2 else {"temperature": 0}
        path = paths[number // 2 % len(paths)]
        body = _body(path, content, rng.randint(*tokens))
        prompts.append(Prompt(number, {"model": "m", "stream": True, **body, **drawn}, path))
    return prompts


def _body(path: str, content: str, max_tokens: int) -> dict[str, Any]:
    if path == RESPONSES:
        return {"input": content, "max_output_tokens": max_tokens}
    said = {"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens}
    if path == MESSAGES:
        return {**said, "thinking": {"type": "adaptive"}}
    return {**said, "ignore_eos": True, "stream_options": {"include_usage": True}}


@dataclass(slots=True, eq=False)
class Stream:
    """One answer as it came. Times are seconds since 1970; `times` of everything that has text.
    `is_lost`: the connection ended, which is the `error`. `cached_tokens` and `route` (why it was
    placed there) as the head says; `gateway` is that which was asked, of several.
    """

    prompt: Prompt
    asked_at: float
    worker: str = ""
    served_by: str = ""
    head_at: float = 0.0
    times: list[float] = field(default_factory=list)
    text: str = ""
    thought: str = ""
    finish: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_done: bool = False
    ended_at: float = 0.0
    error: str = ""
    is_lost: bool = False
    cached_tokens: int = 0
    gateway: int = 0
    route: str = ""

    @property
    def answer(self) -> tuple[str, str, str]:
        """All that the client was shown."""
        return self.text, self.thought, self.finish


class Traffic:
    """Clients that ask again and again. `expected` maps a prompt's number to its answer;
    `problems` is everything that a client must not see.
    """

    def __init__(self, base_url: str, prompts: list[Prompt], expected: Answers) -> None:
        self.base_url = base_url
        self._prompts = prompts
        self.expected = expected
        self.running: list[Stream] = []
        self.over: list[Stream] = []
        self.problems: list[str] = []
        self._is_stopping = False

    def stop(self) -> None:
        """Let every client end after its present answer."""
        self._is_stopping = True

    async def run(self, num_clients: int, seed: int) -> None:
        """Ask until `stop`, each client with its own order of prompts."""
        async with (
            checked_async_client(
                self.base_url, timeout_s=SILENCE_S, max_connections=num_clients
            ) as client,
            trio.open_nursery() as nursery,
        ):
            for number in range(num_clients):
                rng = random.Random(seed * 1000 + number)
                nursery.start_soon(self._ask_on_and_on, client, rng)

    async def _ask_on_and_on(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        while not self._is_stopping:
            stream = await self.ask(client, rng.choice(self._prompts))
            if stream.error:
                await trio.sleep(0.2)  # a client that fails must not flood the fleet

    async def ask(self, client: httpx.AsyncClient, prompt: Prompt) -> Stream:
        """One answer, judged."""
        stream = await self.receive(client, prompt)
        self.judge(stream)
        return stream

    async def receive(self, client: httpx.AsyncClient, prompt: Prompt, gateway: int = 0) -> Stream:
        """One answer, as it comes."""
        stream = Stream(prompt, time.time(), gateway=gateway)
        self.running.append(stream)
        try:
            await _receive(client, stream)
        except (httpx.HTTPError, StreamFault) as error:
            stream.error = f"{type(error).__name__}: {error}"
            stream.is_lost = isinstance(error, httpx.TransportError)
        stream.ended_at = time.time()
        self.running.remove(stream)
        self.over.append(stream)
        return stream

    def judge(self, stream: Stream) -> None:
        """Note what its client must not see."""
        if fault := self._judge(stream):
            stream.error = fault
            self.problems.append(
                f"prompt {stream.prompt.number} after {len(stream.times)} events: {fault}"
            )

    def _judge(self, stream: Stream) -> str:
        wanted = self.expected.get(stream.prompt.number)
        if stream.error:
            return stream.error
        if not stream.is_done:
            return "ended without its last event"
        # Only a chat can ask for all its tokens; the others may end by themselves.
        if stream.prompt.path == CHAT:
            if stream.finish != "length":
                return f"finish_reason {stream.finish!r}"
            if stream.completion_tokens != stream.prompt.body["max_tokens"]:
                return f"{stream.completion_tokens} tokens in usage"
        for came, due in zip(stream.answer, wanted or stream.answer, strict=True):
            if came != due:
                at = _first_difference(came, due)
                return f"WRONG BYTES from character {at}: {came[at : at + 20]!r}"
        return ""


async def learn(base_url: str, prompts: Iterable[Prompt], *, concurrency: int) -> Answers:
    """The undisturbed answers, so many at a time. Raises `AssertionError` if one fails."""
    traffic = Traffic(base_url, list(prompts), {})
    waiting = iter(list(prompts))
    async with checked_async_client(base_url, timeout_s=SILENCE_S) as client:

        async def ask_next() -> None:
            for prompt in waiting:
                await traffic.ask(client, prompt)

        async with trio.open_nursery() as nursery:
            for _ in range(concurrency):
                nursery.start_soon(ask_next)
    assert not traffic.problems, traffic.problems[:3]
    return {stream.prompt.number: stream.answer for stream in traffic.over}


async def _receive(client: httpx.AsyncClient, stream: Stream) -> None:
    body, path = stream.prompt.body, stream.prompt.path
    take = _TAKE[path]
    async with client.stream("POST", path, json=body) as reply:
        stream.head_at = time.time()
        stream.worker = reply.headers.get("x-herma-worker", "")
        stream.served_by = reply.headers.get("x-herma-served-by", "")
        stream.cached_tokens = int(reply.headers.get("x-herma-cached-tokens", "0"))
        stream.route = reply.headers.get("x-herma-route", "")
        if reply.status_code != 200:
            stream.error = f"{reply.status_code}: {(await reply.aread())[:200]!r}"
            return
        async for line in reply.aiter_lines():
            if line == "data: [DONE]":
                stream.is_done = True
            elif line.startswith("data: "):
                take(stream, msgspec.json.decode(line[6:]))


def _take_chunk(stream: Stream, event: dict[str, Any]) -> None:
    if "error" in event:
        stream.error = f"SSE error: {event['error']}"
        return
    if usage := event.get("usage"):
        stream.prompt_tokens = usage["prompt_tokens"]
        stream.completion_tokens = usage["completion_tokens"]
    for choice in event["choices"]:
        delta = choice["delta"]
        _add(stream, delta.get("content") or "", delta.get("reasoning_content") or "")
        stream.finish = choice.get("finish_reason") or stream.finish


def _take_response(stream: Stream, event: dict[str, Any]) -> None:
    """The numbers and ids of the events are the checker's."""
    match event["type"]:
        case "response.output_text.delta":
            _add(stream, event["delta"], "")
        case "response.reasoning_text.delta":
            _add(stream, "", event["delta"])
        case "response.completed" | "response.incomplete":
            response = event["response"]
            stream.is_done, stream.finish = True, response["status"]
            stream.prompt_tokens = response["usage"]["input_tokens"]
            stream.completion_tokens = response["usage"]["output_tokens"]
        case "response.failed":
            stream.error = f"failed: {event['response']['error']}"


def _take_message(stream: Stream, event: dict[str, Any]) -> None:
    match event["type"]:
        case "content_block_delta":
            delta = event["delta"]
            _add(stream, delta.get("text", ""), delta.get("thinking", ""))
        case "message_delta":
            stream.finish = event["delta"]["stop_reason"]
            stream.completion_tokens = event["usage"]["output_tokens"]
        case "message_stop":
            stream.is_done = True
        case "error":
            stream.error = f"error event: {event['error']}"


def _add(stream: Stream, text: str, thought: str) -> None:
    """More of the answer; a random model may open a thought."""
    stream.text += text
    stream.thought += thought
    if text or thought:
        stream.times.append(time.time())


_TAKE: Final = {CHAT: _take_chunk, RESPONSES: _take_response, MESSAGES: _take_message}


def _first_difference(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
