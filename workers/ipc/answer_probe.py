"""Fixed questions to an engine on link 0, one after another, with its answers and their speed.

Owns the requests, the reading of the answers and their times. The answers are greedy, so that those
of two versions can be compared. Must not know processes or clocks: times are arguments, in seconds.
"""

from collections.abc import Sequence
from typing import Final, final

import msgspec

from protocol.control_messages import ProbedAnswer, ProbeQuestion
from protocol.messages import (
    Finished,
    FromWorker,
    Rejected,
    Relay,
    RelayData,
    RelayEnd,
    RelayFacts,
    Submit,
    TokenItem,
    Tokens,
)
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens, unpack_tokens
from workers.ipc.health_probe import chat_fields, chat_relay

_ALTERNATIVES: Final = 2
"""How many alternatives are asked for: two, because one may be the chosen token."""
_MIN_TIMED: Final = 4
"""With fewer tokens no speed is computed."""


@final
class AnswerProbe:
    """Puts `questions` to the model `model`; `relay` are the facts of a text-level engine.
    `request` is the next message to send; `answers` are complete once `is_over`, unless there is a
    `failure`.
    """

    def __init__(
        self,
        request_id: bytes,
        model: str,
        questions: Sequence[ProbeQuestion],
        now: float,
        relay: RelayFacts | None = None,
        *,
        has_leads: bool = True,
    ) -> None:
        self.failure = ""
        self.answers: list[ProbedAnswer] = []
        self._id = request_id
        self._model = model
        self._questions = questions
        self._relay = relay
        self._num_alternatives = _ALTERNATIVES if has_leads else None
        self._begin(now)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be sent or received."""
        return bool(self.failure) or len(self.answers) == len(self._questions)

    @property
    def request(self) -> Submit | Relay:
        """The open question, as a message to the engine."""
        question = self._questions[len(self.answers)]
        if self._relay is not None:
            return _relay(self._id, len(self.answers), self._model, self._relay, question)
        return Submit(
            request_id=self._id,
            attempt=len(self.answers),
            model=self._model,
            prompt_ids=pack_tokens(question.ids),
            output_ids=b"",
            sampling=SamplingParams(
                max_tokens=question.max_tokens,
                temperature=0.0,
                ignore_eos=True,
                logprobs=self._num_alternatives,
            ),
            seed=0,
        )

    def receive(self, message: FromWorker, now: float) -> bool:
        """Take a message of the engine. True if the caller must send the next `request`."""
        match message:
            case Tokens(items=items):
                for item in items:
                    if item.request_id == self._id and item.attempt == len(self.answers):
                        self._take(item, now)
            case Finished(request_id=self._id, reason="stop" | "length"):
                return self._ended(now)
            case RelayData(request_id=self._id, data=data):
                self._body += data
            case RelayEnd(request_id=self._id, error=None):
                return self._ended(now)
            case Finished(request_id=self._id) | Rejected(request_id=self._id):
                self._fail(f"{message.reason} {message.detail}")
            case RelayEnd(request_id=self._id, error=error, detail=detail):
                self._fail(f"{error} {detail}")
            case _:
                pass
        return False

    def _begin(self, now: float) -> None:
        self._began_at = self._first_at = self._last_at = now
        self._ids: list[int] = []
        self._leads: list[float] = []
        self._num_first = 0
        self._body = b""

    def _take(self, item: TokenItem, now: float) -> None:
        ids = unpack_tokens(item.ids)
        self._last_at = now
        if not self._ids:
            self._first_at, self._num_first = now, len(ids)
        self._ids += ids
        for token_id, given in zip(ids, item.logprobs, strict=False):
            others = [logprob for other, logprob in given.top if other != token_id]
            if others:
                self._leads.append(given.logprob - max(others))

    def _ended(self, now: float) -> bool:
        """Note that the open question is answered. True if another one follows."""
        if self._relay is not None:
            self._answered_in_text(now)
        else:
            self.answers.append(
                ProbedAnswer(
                    tokens=tuple(self._ids),
                    leads=tuple(self._leads) if len(self._leads) == len(self._ids) else (),
                    first_token_s=self._first_at - self._began_at,
                    tokens_per_s=self._speed(),
                )
            )
        if self.is_over:
            return False
        self._begin(now)
        return True

    def _speed(self) -> float:
        """Tokens per second after the first frame, whose time is not that of a step. On a busy host
        frames may be read together: then the speed of the whole answer, which is never above the
        engine's speed. 0 for a few tokens.
        """
        parts = (
            (len(self._ids) - self._num_first, self._last_at - self._first_at),
            (len(self._ids), self._last_at - self._began_at),
        )
        known = (num / took_s for num, took_s in parts if num >= _MIN_TIMED and took_s > 0)
        return next(known, 0.0)

    def _answered_in_text(self, now: float) -> None:
        """Read the whole body of a text-level engine's answer."""
        try:
            body = msgspec.json.decode(self._body)
            text = str(body["choices"][0]["message"]["content"] or "")
            num_tokens = int(body.get("usage", {}).get("completion_tokens", 0))
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError):
            self._fail(self._body[:200].decode(errors="replace"))
            return
        lasted_s = now - self._began_at
        speed = num_tokens / lasted_s if num_tokens and lasted_s > 0 else 0.0
        self.answers.append(ProbedAnswer(text=text, tokens_per_s=speed))

    def _fail(self, why: str) -> None:
        number = len(self.answers) + 1
        self.failure = f"question {number} of {len(self._questions)}: {why}".rstrip(": ")


def _relay(
    request_id: bytes, attempt: int, model: str, facts: RelayFacts, question: ProbeQuestion
) -> Relay:
    fields = {**chat_fields(facts, question.text, question.max_tokens), "temperature": 0}
    taken = {name: value for name, value in fields.items() if name not in facts.refused_fields}
    return chat_relay(request_id, attempt, model, taken)
