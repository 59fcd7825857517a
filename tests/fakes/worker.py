"""A worker for tests: real frames over a real DEALER socket, in the test's own trio loop.

It answers every prompt with the tokens of a script, at its position in the script, so that a
resumed sequence continues exactly. Knobs stop, break and kill it at chosen points.
"""

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec
import trio

from protocol.files_digest import files_digest
from protocol.hashing import block_digests, root_digest
from protocol.ids import WorkerId
from protocol.messages import (
    PROTOCOL_VERSION,
    Abort,
    Accepted,
    BlocksSnapshot,
    BlocksStored,
    Drain,
    Embed,
    Embedding,
    EngineFacts,
    Fault,
    Files,
    Finished,
    FromWorker,
    GetFiles,
    Load,
    Ping,
    Pong,
    Register,
    Rejected,
    RejectReason,
    Snapshot,
    Submit,
    TokenItem,
    TokenLogprobs,
    Tokens,
    ToWorker,
    Welcome,
)
from protocol.tokens import count_tokens, pack_tokens, unpack_tokens
from protocol.transport import CurveClient, DealerSocket, LocalDealer, is_local
from protocol.wire import decode_to_worker, encode
from tests.fakes.text_files import make_text_files, make_tokenizer

M = TypeVar("M")
DIGEST = files_digest(make_text_files())
PATIENCE_S = 90.0


@dataclass
class FakeSequence:
    """A submitted sequence that was not finished, rejected or aborted yet."""

    submit: Submit
    num_sent: int


class FakeWorker:
    """A worker by the name `name` that serves `model`.

    `text` is what it answers; `end` whether the end-of-text token follows, which is counted and not
    sent, as by the engine. `pause_after`: it goes silent about a sequence after so many output
    tokens (counted over all attempts) until `resume`. `rejections` are given to the next
    submissions. `tokens_per_frame` come at once.
    """

    def __init__(
        self,
        name: str = "w1",
        *,
        model: str = "alpha",
        text: str = "The weather in Athens is warm.",
        end: bool = True,
        context_length: int = 4096,
        block_size: int = 32,
        max_seqs: int = 4,
        tokens_per_frame: int = 1,
        files: dict[str, bytes] | None = None,
        digest: bytes | None = None,
        identity: bytes | None = None,
        keys: CurveClient | None = None,
    ) -> None:
        self.name = name
        self.model = model
        tokenizer = make_tokenizer()
        self.script: list[int] = list(tokenizer.encode(text, add_special_tokens=False).ids)
        self.end_id = tokenizer.token_to_id("<|im_end|>") if end else None
        if self.end_id is not None:
            self.script.append(self.end_id)
        self.files = make_text_files() if files is None else files
        self.facts = EngineFacts(
            kind="fake",
            device="cpu",
            dtype="float32",
            context_length=context_length,
            block_size=block_size,
            kv_tokens=context_length * max_seqs,
            max_seqs=max_seqs,
            token_budget=512,
            files_digest=files_digest(self.files) if digest is None else digest,
        )
        self.tokens_per_frame = tokens_per_frame
        self.pause_after: int | None = None
        self.answers_pings = True
        self.rejections: list[RejectReason] = []
        self.cached: dict[bytes, None] = {}
        self.epoch = 1
        self.heard: list[ToWorker] = []
        self.running: dict[bytes, FakeSequence] = {}
        self._news = trio.Event()
        self._is_up = False
        self._step = 0
        self._block_seq = 0
        self._registered: Register | None = None
        identity = identity if identity is not None else name.encode().ljust(16, b"\0")
        self._identity = WorkerId(identity)
        self._socket: DealerSocket | LocalDealer = DealerSocket(
            self._identity, self._hear, on_link=self._link_changed, keys=keys
        )

    # Steering.

    def change_files(self) -> None:
        """Have other text files, with their digest."""
        name = "tokenizer_config.json"
        self.files = {**self.files, name: self.files[name] + b"\n"}
        self.facts = msgspec.structs.replace(self.facts, files_digest=files_digest(self.files))

    def register(self, *, ready: bool = True) -> None:
        """Say who it is, now and on every new connection."""
        self._registered = Register(
            protocol_version=PROTOCOL_VERSION,
            worker=self.name,
            models=(self.model,),
            build="fake",
            config_hash="0",
            epoch=self.epoch,
            engine=self.facts if ready else None,
        )
        if self._is_up:
            self.say(self._registered)

    def fail_engine(self) -> None:
        """The engine of the worker dies: all sequences are lost, and the engine starts anew."""
        self.running.clear()
        self.cached.clear()
        self.say(Fault(self.name, self.epoch, "killed", 137))
        self.epoch += 1
        self._block_seq = 0
        self.register(ready=False)

    def die(self) -> None:
        """The worker's host dies: the worker sends nothing more."""
        self.running.clear()
        self._socket.close()

    def resume(self) -> None:
        """Go on with everything that was paused."""
        self.pause_after = None
        for request_id in list(self.running):
            self._generate(request_id)

    def load(self) -> None:
        """Report the engine's counters."""
        self.say(Load(self.epoch, len(self.running), 0, 100, 100, self._step, 0, 1.0, 1e4))

    def say(self, message: FromWorker) -> None:
        self.say_frame(encode(message))

    def say_frame(self, frame: bytes) -> None:
        self._socket.send(frame)

    # Watching.

    def all_of(self, kind: type[M]) -> list[M]:
        return [message for message in self.heard if isinstance(message, kind)]

    async def wait(self, kind: type[M], *, count: int = 1) -> M:
        """The `count`th message of that kind, once it is here."""
        with trio.fail_after(PATIENCE_S):
            while len(found := self.all_of(kind)) < count:
                await self._news.wait()
        return found[count - 1]

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        """Return once `holds` does; it is asked after every message."""
        with trio.fail_after(PATIENCE_S):
            while not holds():
                await self._news.wait()

    # Running.

    def connect(self, address: str) -> None:
        if is_local(address):
            self._socket.close()
            self._socket = LocalDealer(self._identity, self._hear, on_link=self._link_changed)
        self._socket.connect(address)

    async def run(self) -> None:
        await self._socket.run()

    def _link_changed(self, is_up: bool) -> None:
        self._is_up = is_up
        if is_up and self._registered is not None:
            self._socket.drop_waiting()
            self.say(self._registered)

    def _hear(self, frame: bytes) -> None:
        message = decode_to_worker(frame)
        match message:
            case Ping(nonce=nonce):
                if self.answers_pings:
                    self.say(Pong(nonce))
                return
            case Submit():
                self._submitted(message)
            case Embed():
                self._embed(message)
            case Abort(request_id=request_id):
                self._aborted(request_id, message.attempt)
            case GetFiles(digest=digest):
                self.say(Files(digest, self.files))
            case Snapshot():
                self.say(BlocksSnapshot(self._block_seq, b"".join(self.cached)))
            case Welcome() | Drain():
                pass
        self.heard.append(message)
        self._news.set()
        self._news = trio.Event()

    def _embed(self, embed: Embed) -> None:
        """An embedding of the wanted size: the number of the prompt's tokens, then zeros. A worker
        that pauses does not answer.
        """
        if self.pause_after is not None:
            return
        ids = embed.request_id, embed.attempt
        num_tokens = count_tokens(embed.prompt_ids)
        size = embed.dimensions or self.facts.embedding_size
        self.say(Accepted(*ids, 0))
        self.say(Embedding(*ids, struct.pack(f"<{size}f", num_tokens, *[0.0] * (size - 1))))
        self.say(Finished(*ids, "length", num_tokens, 0, 0))

    def _submitted(self, submit: Submit) -> None:
        if self.rejections:
            self.say(Rejected(submit.request_id, submit.attempt, self.rejections.pop(0)))
            return
        digests = block_digests(
            root_digest(submit.model, "", submit.salt), submit.prompt_ids, self.facts.block_size
        )
        hits = 0
        while hits < len(digests) and digests[hits] in self.cached:
            hits += 1
        cached_tokens = hits * self.facts.block_size
        self.say(Accepted(submit.request_id, submit.attempt, cached_tokens))
        if new := digests[hits:]:
            self.cached.update(dict.fromkeys(new))
            self._block_seq += 1
            self.say(BlocksStored(self._block_seq, b"".join(new)))
        sequence = FakeSequence(submit, count_tokens(submit.output_ids))
        self.running[submit.request_id] = sequence
        self._generate(submit.request_id)

    def _generate(self, request_id: bytes) -> None:
        sequence = self.running[request_id]
        sampling = sequence.submit.sampling
        text = self.script if self.end_id is None else self.script[:-1]
        last = min(len(text), sampling.max_tokens)
        stop = last if self.pause_after is None else min(last, self.pause_after)
        while sequence.num_sent < stop:
            end = min(stop, sequence.num_sent + self.tokens_per_frame)
            self._send_tokens(sequence, text[sequence.num_sent : end])
        if sequence.num_sent < last or self.pause_after == last:
            return
        is_whole = self.end_id is not None and sampling.max_tokens >= len(self.script)
        self.finish(sequence, "stop" if is_whole else "length")

    def _send_tokens(self, sequence: FakeSequence, ids: Sequence[int]) -> None:
        submit = sequence.submit
        logprobs: tuple[TokenLogprobs, ...] = ()
        if submit.sampling.logprobs is not None:
            logprobs = tuple(TokenLogprobs(-0.5, ((token_id, -0.5),)) for token_id in ids)
        item = TokenItem(
            submit.request_id, submit.attempt, sequence.num_sent, pack_tokens(ids), logprobs
        )
        self._step += 1
        sequence.num_sent += len(ids)
        self.say(Tokens(self._step, (item,)))

    def finish(
        self,
        sequence: FakeSequence,
        reason: Literal["stop", "length", "error", "grammar"],
        detail: str = "",
    ) -> None:
        """End it; a stop is by the end-of-text token."""
        submit = sequence.submit
        del self.running[submit.request_id]
        matched = self.end_id if reason == "stop" else None
        self.say(
            Finished(
                submit.request_id,
                submit.attempt,
                reason,
                prompt_tokens=count_tokens(submit.prompt_ids),
                cached_tokens=0,
                output_tokens=sequence.num_sent + (matched is not None),
                matched=matched,
                detail=detail,
            )
        )

    def _aborted(self, request_id: bytes, attempt: int) -> None:
        sequence = self.running.get(request_id)
        if sequence is not None and sequence.submit.attempt == attempt:
            del self.running[request_id]
            self.say(Finished(request_id, attempt, "abort", 0, 0, sequence.num_sent))


def prompt_ids(submit: Submit) -> list[int]:
    """The prompt of a submission as numbers."""
    return list(unpack_tokens(submit.prompt_ids))


class WithoutFiles(FakeWorker):
    """A worker that has not sent the model's text files."""

    def say(self, message: FromWorker) -> None:
        """Send any other message."""
        if not isinstance(message, Files):
            super().say(message)


@asynccontextmanager
async def open_worker(
    address: str, worker: FakeWorker | None = None, *, ready: bool = True
) -> AsyncIterator[FakeWorker]:
    """A worker that dials `address` and registers, for the length of the block."""
    worker = worker if worker is not None else FakeWorker()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        worker.register(ready=ready)
        worker.connect(address)
        yield worker
        nursery.cancel_scope.cancel()
