"""Token-level work: a submission becomes a request to the engine, and its events become tokens.

Owns the checks of a submission and the messages about it. Must not know the engine's fields, other
requests or sockets.
"""

from __future__ import annotations

from array import array
from typing import final

from config import WorkerConfig
from protocol.errors import WireError
from protocol.grammars import form_of
from protocol.hashing import block_digests, root_digest
from protocol.messages import (
    Accepted,
    EngineFacts,
    Finished,
    FinishReason,
    Relay,
    RelayChunk,
    RelayCredit,
    Submit,
    TokenItem,
)
from protocol.tokens import pack_tokens, unpack_tokens
from workers.bridge.engine_client import EngineClient, EngineRefusal
from workers.bridge.outbox import Outbox
from workers.bridge.readiness import StopText
from workers.bridge.work import BridgeRequest, CannotRun, Holdings, Key, Progress, note_answered
from workers.external import AnswerPiece, EngineApi, ExternalAnswer, is_lenient


@final
class BridgeSequence(BridgeRequest):
    """One running submission."""

    def __init__(
        self,
        key: Key,
        submit: Submit,
        answer: ExternalAnswer,
        on_progress: Progress,
        work: Sequences,
    ) -> None:
        root = root_digest(submit.model, submit.adapter, submit.salt)
        super().__init__(key, block_digests(root, submit.prompt_ids, work.block_size))
        self._answer = answer
        self._on_progress = on_progress
        self._work = work

    @property
    def num_tokens(self) -> int:
        """The tokens of prompt and outputs."""
        return self._answer.num_prompt + self._answer.num_outputs

    async def run(self) -> None:
        try:
            await self._answer_it()
        except EngineRefusal as refusal:
            grammar = self._answer.grammar
            if grammar is None or refusal.reason != "invalid":
                raise
            if not is_lenient(grammar):
                raise EngineRefusal("grammar", str(refusal)) from refusal
            self._answer.drop_grammar()
            await self._answer_it()
        self._accept()
        self._finish(self._answer.finish_reason)

    async def _answer_it(self) -> None:
        await self._work.client.answer(self._work.api, self._answer, self._take_event)

    def take(self, message: RelayChunk | RelayCredit) -> None:
        raise WireError(f"{type(message).__name__} for a sequence of tokens")

    def aborted(self) -> None:
        self._finish("abort")

    def failed(self, detail: str) -> None:
        self._finish("error", detail)

    def _take_event(self, piece: AnswerPiece | None) -> None:
        """Send new tokens, or note another sign of life (None)."""
        if piece is None:
            self._on_progress(self, 0)
            return
        self._accept()
        link, request_id, attempt = self.key
        packed = pack_tokens(piece.ids)
        item = TokenItem(request_id, attempt, piece.offset, packed, piece.logprobs)
        self._work.outbox.put(link, item)
        self._on_progress(self, len(piece.ids))

    def _accept(self) -> None:
        if self.is_accepted:
            return
        self.is_accepted = True
        link, request_id, attempt = self.key
        self._work.outbox.put(link, Accepted(request_id, attempt, self._answer.cached_tokens or 0))

    def _finish(self, reason: FinishReason, detail: str = "") -> None:
        link, request_id, attempt = self.key
        answer, outbox = self._answer, self._work.outbox
        if reason in {"stop", "length"}:
            note_answered(self, self._work.holdings, outbox, answer.cached_tokens)
        finished = Finished(
            request_id,
            attempt,
            reason,
            prompt_tokens=answer.num_prompt,
            cached_tokens=answer.cached_tokens or 0,
            output_tokens=answer.output_tokens,
            matched=answer.matched,
            detail=detail,
        )
        outbox.put(link, finished)


@final
class Sequences:
    """Accepts submissions for one engine that takes and returns token ids."""

    def __init__(
        self,
        config: WorkerConfig,
        facts: EngineFacts,
        text: StopText,
        client: EngineClient,
        api: EngineApi,
        outbox: Outbox,
        holdings: Holdings,
    ) -> None:
        self._config = config
        self._facts = facts
        self._text = text
        self.api = api
        self.client = client
        self.outbox = outbox
        self.holdings = holdings
        self.block_size = facts.block_size

    def begin(self, key: Key, message: Submit | Relay, on_progress: Progress) -> BridgeSequence:
        if isinstance(message, Relay):
            raise CannotRun("invalid", f"the {self._config.engine} engine takes tokens, not text")
        return BridgeSequence(key, message, self._answer_of(message), on_progress, self)

    def _answer_of(self, submit: Submit) -> ExternalAnswer:
        if (grammar := submit.grammar) is not None:
            form = form_of(grammar.kind, grammar.text)
            if form not in self.api.grammar_forms:
                name = self._config.engine
                raise CannotRun(
                    "grammar", f"the {name} engine enforces no grammars of form `{form}`"
                )
        if (what := self.api.refusal(submit)) is not None:
            raise CannotRun("invalid", f"the {self._config.engine} engine cannot do {what}")
        prompt, outputs = _ids_of(submit.prompt_ids), _ids_of(submit.output_ids)
        window, size = self._facts.context_length, self._text.vocab_size
        if not prompt:
            raise CannotRun("invalid", "the prompt has no tokens; send at least one")
        if len(prompt) >= window:
            detail = f"the prompt has {len(prompt)} tokens and the context length is {window}"
            raise CannotRun("too_long", f"{detail}, with room for the answer")
        if size is not None and max(prompt) >= size:
            raise CannotRun(
                "invalid", f"token id {max(prompt)} is outside the vocabulary of {size}"
            )
        return ExternalAnswer(
            prompt,
            outputs,
            submit.sampling,
            seed=submit.seed,
            salt=submit.salt,
            max_outputs=min(submit.sampling.max_tokens, window - len(prompt)),
            eos_ids=self._text.eos_ids,
            vocab_size=size,
            grammar=submit.grammar,
        )


def _ids_of(packed: bytes) -> array[int]:
    try:
        return unpack_tokens(packed)
    except WireError as error:
        raise CannotRun("invalid", str(error)) from error
