"""A sequence run: one choice of an answer, from its first lease to its last token.

Owns the tokens so far and the moves between workers: when a worker is lost, another one continues
the sequence after the tokens so far. Must not know HTTP, frames or providers.
"""

import logging
from collections.abc import Callable
from typing import assert_never

import trio

from gateway.api import (
    ApiError,
    Embedded,
    PromptScored,
    Started,
    TurnEvent,
    connection_lost,
    context_length_exceeded,
    invalid,
    unavailable,
)
from gateway.link import Attempt, Crashed, Lost, Overdue, Silence, StoppedByGateway, Unreadable
from gateway.output import (
    NO_STOPS,
    OutputPipeline,
    Reason,
    SequenceOutput,
    StopMatcher,
    spelled_logprob,
)
from gateway.output.tools import ARGUMENTS, ToolParser
from gateway.routing import PROOF_TOKENS, Lease, RouteRequest
from gateway.telemetry import AnsweredAttempt
from gateway.turn.preparation import Job
from gateway.turn.retry_policy import failed_there
from gateway.turn.services import Services
from gateway.turn.tries import (
    COMPLETE,
    LAST,
    PART,
    PREFILLING,
    PROOF,
    SUBMIT,
    TABLE,
    TryEvent,
    TryState,
)
from gateway.turn.try_loop import NO_ROOM, TryLoop
from protocol.errors import WireError
from protocol.ids import WorkerId
from protocol.messages import (
    Accepted,
    Embed,
    Finished,
    Rejected,
    Score,
    Scored,
    Submit,
    TokenItem,
    TokenLogprobs,
)
from protocol.tokens import TOKEN_BYTES, unpack_tokens

_Loss = Lost | Overdue | Unreadable | Crashed | Rejected | Finished
"""The outcomes of an attempt that leave the choice without a worker."""

_log = logging.getLogger(__name__)


class SequenceRun(TryLoop):
    """The choice `index` of `job`; events go to `emit` as tokens arrive.

    It has begun at the first token, when the prompt's blocks are in the worker's cache, or at the
    end of a choice without tokens. `output` is the output so far. `on_end` is called after the last
    event; if a frame ends the choice, within the link's frame callback.
    """

    __slots__ = (
        "_attempt",
        "_beginning",
        "_emit",
        "_index",
        "_is_text_sent",
        "_job",
        "_num_at_start",
        "_prefer",
        "_scores",
        "_worker_name",
        "accepted_tokens",
        "cached_tokens",
        "drafted_tokens",
        "on_end",
        "output",
        "worker_id",
    )

    def __init__(
        self, services: Services, job: Job, index: int, emit: Callable[[TurnEvent], None]
    ) -> None:
        super().__init__(services, job.caller, job.model, job.request.fingerprint)
        self._job = job
        self._index = index
        self._emit = emit
        self.output = SequenceOutput(
            _pipeline(services, job, index),
            emit,
            max_tokens=job.sampling.max_tokens,
            end_ids=job.end_ids,
        )
        self._attempt: Attempt | None = None
        self._scores: list[TokenLogprobs] = []
        self._num_at_start = 0
        self._prefer: WorkerId | None = None
        self._is_text_sent = False
        self._worker_name = ""
        self._beginning: trio.Event | None = None
        self.on_end: Callable[[SequenceRun], object] | None = None
        self.cached_tokens: int | None = None
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.worker_id: WorkerId | None = None

    def follow(self, first: "SequenceRun") -> None:
        """Begin where `first` runs, another choice of the same answer, whose text has been sent.
        That worker holds the prompt's blocks.
        """
        self._is_text_sent = True
        if (prefer := first.worker_id) is not None:
            # `prefer` only breaks ties; excluding the others makes that worker the first choice.
            self._prefer = prefer
            self._excluded = self._services.link.others(prefer)

    async def until_begun(self) -> None:
        """Return once `has_begun` is set."""
        if not self.has_begun:
            if self._beginning is None:
                self._beginning = trio.Event()
            await self._beginning.wait()

    def _emit_end(self, end: Reason) -> None:
        if not self.has_begun:
            self._begin()
        self.output.finish(end)
        if self._index == 0 and self.worker_id is not None:
            tool = self.output.last_tool
            self._trace.answered = AnsweredAttempt(
                self.worker_id, self._request_id, self._num_attempts, tool
            )
        if self.on_end is not None:
            self.on_end(self)

    def _begin(self) -> None:
        self.has_begun = True
        if self._beginning is not None:
            self._beginning.set()

    def _enter_trace(self) -> None:
        trace, job = self._trace, self._job
        trace.outputs.append(self.output)
        trace.names += (self._request_id,)
        if self._index == 0:
            trace.model = job.model
            trace.prompt_tokens += job.prompt_tokens
            trace.prompt, trace.text = job.prompt, job.text

    async def _try(self, lease: Lease) -> None:
        attempt = self._attempt_at(lease)
        # `Attempt.wait`, inlined: one nested call less on resuming.
        while (outcome := attempt.outcome) is None:
            await attempt.ended.wait()
        self._drop_attempt()
        if self.state is COMPLETE:
            return  # `_on_complete` has set it, with the worker's `Finished`
        match outcome:
            case Rejected(reason=reason) if reason in NO_ROOM and not lease.is_lost:
                # A busy worker has not failed: no loss is counted.
                self._why_busy = reason
                self.state = TABLE[self.state, TryEvent.REJECT]
            case StoppedByGateway():
                self._emit_end("stop")
                self.state = TABLE[self.state, LAST]
            case _:
                self._lose(attempt, outcome)

    def _lose(self, attempt: Attempt, outcome: _Loss) -> None:
        """The lease is lost, perhaps behind the last token. Raises `ApiError` if the choice cannot
        continue.
        """
        was_proven = self.state is TryState.PROVEN
        self.state = TABLE[self.state, self._judge(outcome, attempt.lease.ticket)]
        if (end := self.output.complete_already()) is not None:
            self._emit_end(end)
            self.state = TABLE[self.state, TryEvent.SUFFICE]
            return
        if self.state is TryState.DISTRUSTED and not self._may_go_elsewhere(attempt.worker_id):
            raise connection_lost()
        self._note_loss(attempt.lease, outcome, self._worker_name, is_proven=was_proven)
        self._has_failed = self._has_failed or failed_there(outcome)

    def _num_tokens(self) -> int:
        return self.output.num_tokens

    def _tokens_at_release(self) -> int | None:
        return self.output.num_tokens or None

    def _request(self) -> RouteRequest:
        job, caller, output = self._job, self._caller, self.output
        num_tokens = output.num_tokens
        return RouteRequest(
            ticket=self._next_ticket(),
            model=job.model,
            key=caller.key,
            weight=caller.weight,
            session=job.session,
            digests=job.digests,
            prompt_tokens=job.prompt_tokens + num_tokens,
            max_tokens=max(1, job.sampling.max_tokens - num_tokens),
            auxiliary=job.auxiliary,
            cloud=self._cloud and caller.cloud,
            excluded=self._excluded,
            has_failed=self._has_failed,
            # Once this choice has begun, text of its siblings may have been sent.
            resumed=self._is_text_sent or output.has_text or (self.has_begun and job.request.n > 1),
            may_restart=not job.request.stream,
            prefer=self._prefer,
            fingerprint=job.request.fingerprint,
            # The first choice asks for all choices: the others start once it has begun.
            num_sequences=1 if self.has_begun or self._index else job.request.n,
        )

    def _replaced(self) -> ApiError:
        """The error when the prompt was encoded with another tokenizer than the model's workers now
        have, so that its token ids mean something else.
        """
        if self.output.packed and self._job.request.stream:
            return connection_lost()
        return unavailable("The model was replaced while this request waited for it.", 1)

    def _may_go_elsewhere(self, worker_id: WorkerId) -> bool:
        """Whether another worker of the model has joined, or a provider may answer. Otherwise the
        choice would wait for `worker_id` to be trusted again, and not be given to it.
        """
        dispatcher, job = self._services.dispatcher, self._job
        joined = {one.worker_id for one in dispatcher.workers() if job.model in one.models}
        if joined - self._distrusted - {worker_id}:
            return True
        view = dispatcher.model(job.model)
        is_bound = job.request.stream and (self._is_text_sent or self.output.has_text)
        may_use = self._cloud and self._caller.cloud and not is_bound
        return may_use and view is not None and view.cloud and bool(view.fallback)

    def _judge(self, outcome: _Loss, ticket: int) -> TryEvent:
        """Report a failure of the worker to the dispatcher. Returns what it means for the choice.
        Raises `ApiError` if the choice cannot continue.
        """
        failed = self._services.dispatcher.failed
        match outcome:
            case Lost() | Finished(reason="abort"):
                pass  # This gateway did not abort it: the worker had lost its link to this gateway.
            case Finished(reason="grammar"):
                raise self._grammar_refused(outcome.detail)
            case Finished(detail=detail) | Unreadable(detail=detail):
                failed(ticket, "its engine failed on a request")
                self._policy().note_error(detail)
            case Overdue():
                failed(ticket, "it was silent about a request")
                self._policy().note_silence(has_begun=self.output.num_tokens > 0)
            case Crashed(error=error):
                return self._after_crash(error, ticket)
            case Rejected(reason=reason) if reason in NO_ROOM:
                pass  # the lease was lost as well, so `route_again` cannot be used
            case Rejected():
                return self._after_refusal(outcome, ticket)
            case _:
                assert_never(outcome)
        return TryEvent.LOSE

    def _attempt_at(self, lease: Lease) -> Attempt:
        """Start an attempt on the worker of the lease."""
        job = self._job
        if lease.files_digest != job.files_digest:
            raise self._replaced()
        # `num_tokens`, inlined: this is on the way of every request.
        num_tokens = self._num_at_start = len(self.output.packed) // TOKEN_BYTES
        self.worker_id = lease.worker_id
        self._worker_name = self._begin_attempt(lease, self._index)
        attempt = self._attempt = Attempt(
            lease,
            self._request_id,
            self._num_attempts,
            expected=num_tokens,
            on_first_tokens=self._on_first_tokens,
            on_tokens=self.output.take_item,
            on_accepted=self._on_accepted,
            on_complete=self._on_complete,
        )
        if attempt.outcome is None:
            bounds, placed_at = self._services.config.gateway, lease.placed_at
            make = Silence if (policy := self._retry_policy) is None else policy.silence
            attempt.silence = make(
                bounds.first_token_s, bounds.stall_s, placed_at, num_parts=num_tokens
            )
            if job.request.embeds:
                attempt.on_embedding = self._on_embedding
            elif job.request.num_top is not None:
                attempt.on_scored = self._on_scored
            self.state = TABLE[self.state, SUBMIT]
            self._services.link.submit(attempt, self._message(job))
        return attempt

    def _message(self, job: Job) -> Submit | Embed | Score:
        if job.request.num_top is not None:
            return Score(
                request_id=self._request_id,
                attempt=self._num_attempts,
                model=job.model,
                prompt_ids=job.prompt,
                num_top=job.request.num_top,
                salt=job.salt,
            )
        if job.request.embeds:
            return Embed(
                request_id=self._request_id,
                attempt=self._num_attempts,
                model=job.model,
                prompt_ids=job.prompt,
                dimensions=job.request.dimensions,
                salt=job.salt,
            )
        return Submit(
            request_id=self._request_id,
            attempt=self._num_attempts,
            model=job.model,
            prompt_ids=job.prompt,
            output_ids=bytes(self.output.packed),
            sampling=job.sampling,
            seed=job.seed_of(self._index) if self._index else job.seed,
            salt=job.salt,
            grammar=job.grammar,
        )

    def _drop_attempt(self) -> None:
        """Forget the attempt, which aborts unfinished work. Never waits, so a cancelled turn needs
        no shield. Clearing `_attempt` breaks a reference cycle, which would otherwise wait for the
        garbage collector.
        """
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self._services.link.forget(attempt)

    def _on_accepted(self, message: Accepted) -> None:
        if self._step is not None:
            self._step.cached_tokens = message.cached_tokens
        # Only the attempt that gives the first token counts: after a resume the prompt may be
        # cached because of this sequence's own earlier attempt.
        if not self.output.packed:
            self.cached_tokens = min(message.cached_tokens, self._job.prompt_tokens)
        if self._index == 0:
            assert self._attempt is not None
            self._emit(
                Started(
                    served_by="worker",
                    worker=self._worker_name,
                    cached_tokens=self.cached_tokens or 0,
                    route=self._attempt.lease.reason,
                    model=self._job.model,
                    prompt_tokens=self._job.prompt_tokens,
                )
            )

    def _on_first_tokens(self, item: TokenItem) -> bool:
        """Take tokens until the lease is proven; after that the link calls `output.take_item`."""
        attempt, output = self._attempt, self.output
        assert attempt is not None
        if self.state is PREFILLING:
            self._end_prefill(attempt)
        is_stopped = output.take_item(item)
        if output.num_tokens - self._num_at_start >= PROOF_TOKENS:
            self._prove(attempt)
        return is_stopped

    def _on_embedding(self, values: bytes) -> None:
        attempt = self._attempt
        assert attempt is not None
        if self.state is PREFILLING:
            self._end_prefill(attempt)
            self._prove(attempt)
        self._emit(Embedded(self._index, values))

    def _on_scored(self, message: Scored) -> None:
        """Take a part of the prompt's log-probabilities; another attempt begins them again."""
        attempt = self._attempt
        assert attempt is not None
        scores = self._scores = self._scores if message.offset > 1 else []
        if message.offset != len(scores) + 1:
            raise WireError(f"scores at {message.offset} came where {len(scores) + 1} was due")
        if self.state is PREFILLING:
            self._end_prefill(attempt)
            self._prove(attempt)
        scores += message.logprobs

    def _emit_scores(self) -> None:
        """Raises `WireError` if some are missing."""
        ids = unpack_tokens(self._job.prompt)
        if len(self._scores) != len(ids) - 1:
            raise WireError(f"{len(self._scores)} scores came for a prompt of {len(ids)} tokens")
        token_bytes = self._job.text.token_bytes
        rest = [
            spelled_logprob(token_bytes, token_id, scores)
            for token_id, scores in zip(ids[1:], self._scores, strict=True)
        ]
        first = spelled_logprob(token_bytes, ids[0], TokenLogprobs(0.0)).token
        self._emit(PromptScored(self._index, first, tuple(rest)))

    def _end_prefill(self, attempt: Attempt) -> None:
        self.state = TABLE[self.state, PART]
        first_at = self._services.dispatcher.started(attempt.lease.ticket)
        if self._step is not None:
            self._step.first_at = first_at
        self._begin()

    def _prove(self, attempt: Attempt) -> None:
        self.state = TABLE[self.state, PROOF]
        attempt.is_proven = True
        if self._retry_policy is not None:
            self._retry_policy.proven()
        self._services.dispatcher.proven(attempt.lease.ticket)

    def _on_complete(self, finished: Finished) -> None:
        self.drafted_tokens += finished.drafted_tokens
        self.accepted_tokens += finished.accepted_tokens
        match finished.reason:
            case "stop" | "length" as reason:
                if self._num_at_start == 0:
                    # Some external engines report cached tokens only at the end.
                    num_cached = max(self.cached_tokens or 0, finished.cached_tokens)
                    self.cached_tokens = min(num_cached, self._job.prompt_tokens)
                self.output.num_unsent = int(finished.matched is not None)
                if self._job.request.num_top is not None:
                    self._emit_scores()
                self._emit_end(reason)
                self.state = TABLE[self.state, LAST]
            case "abort" | "error" | "grammar":
                pass  # `_judge` decides whether another worker continues or the choice fails

    def _after_crash(self, error: Exception, ticket: int) -> TryEvent:
        """The event that follows from an error in the processing of tokens. Raises the failure of
        our own code, unless the worker broke the protocol, which is reported.
        """
        if not isinstance(error, WireError):
            raise error
        self._services.dispatcher.failed(ticket, "it broke the protocol")
        _log.error("worker %s broke the protocol: %s", self._worker_name, error)
        return TryEvent.DISTRUST

    def _after_refusal(self, rejected: Rejected, ticket: int) -> TryEvent:
        """The event that follows from the worker's refusal. Raises `ApiError` if the request is at
        fault; it is not at fault if another worker has begun it.
        """
        if not self.output.packed or rejected.reason == "grammar":
            raise self._refused(rejected)
        # A worker may have a shorter context than the other one.
        if rejected.reason != "too_long":
            self._services.dispatcher.failed(ticket, "it refused the rest of an answer")
        return TryEvent.DISTRUST

    def _refused(self, rejected: Rejected) -> ApiError:
        match rejected.reason:
            case "too_long":
                view = self._services.dispatcher.model(self._job.model)
                window = view.context_length if view is not None else None
                return context_length_exceeded(
                    window or 0, self._job.prompt_tokens, self._job.request.prompt_field
                )
            case "grammar":
                return self._grammar_refused(rejected.detail)
            case "invalid":
                return invalid(None, f"The worker cannot run this request: {rejected.detail}")
            case _:
                return ApiError(502, "The worker refused this request; its log has the cause.")

    def _grammar_refused(self, reason: str) -> ApiError:
        request = self._job.request
        wanted = request.grammar
        field = wanted.field if wanted is not None else "tools"
        rule, _, why = reason.partition(": ")
        at = rule.removeprefix(ARGUMENTS).partition("_")[0]
        if rule.startswith(ARGUMENTS) and at.isdecimal() and int(at) < len(request.tools):
            field, name = f"tools[{at}]", request.tools[int(at)]["function"]["name"]
            text = f"The schema of tool {name!r} cannot be enforced: {why}"
            return invalid(field, text, code="invalid_grammar")
        return invalid(field, f"'{field}' cannot be enforced: {reason}", code="invalid_grammar")

    def _release(self) -> None:
        if self._attempt is not None:
            self._drop_attempt()
        super()._release()


def _pipeline(services: Services, job: Job, index: int) -> OutputPipeline:
    form = job.form
    parser = None
    if form.tools is not None:
        parser = ToolParser(
            form.tools,
            services.draw,
            job.request.tools,
            index,
            is_single=not job.request.parallel_calls,
            past_ids=_past_ids(job) if form.tools.keeps_ids else (),
        )
        parser.begin(job.opening)
    is_past = bool(job.opening or job.request.answer_start)
    return OutputPipeline(
        job.text.decoder(form),
        StopMatcher(job.request.stop) if job.request.stop else NO_STOPS,
        parser,
        index=index,
        silent_ids=job.end_ids,
        stop_ids=job.stop_ids,
        token_bytes=job.text.token_bytes if job.request.logprobs else None,
        reasoning=form.splitter(job.request.tools, is_open=job.is_thinking, is_past=is_past),
    )


def _past_ids(job: Job) -> frozenset[str]:
    """The ids of the conversation's calls."""
    messages = job.request.messages
    return frozenset(call.id for message in messages for call in message.tool_calls)
