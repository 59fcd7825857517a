"""The proof that an engine answers: four tokens on link 0 before gateways are notified.

Owns the request and what counts as a good answer. Must not know processes.
"""

from typing import Final

from protocol.messages import Finished, FromWorker, Rejected, Submit, Tokens
from protocol.sampling import SamplingParams
from protocol.tokens import count_tokens, pack_tokens

PROBE_TOKENS: Final = 4
PROBE_PROMPT: Final = (1, 2, 3, 4)
"""Ids that every vocabulary has; their text does not matter."""


class HealthProbe:
    """One request and its answer so far."""

    def __init__(self, request_id: bytes, model: str) -> None:
        self.submit = Submit(
            request_id=request_id,
            attempt=0,
            model=model,
            prompt_ids=pack_tokens(PROBE_PROMPT),
            output_ids=b"",
            sampling=SamplingParams(max_tokens=PROBE_TOKENS, temperature=0.0, ignore_eos=True),
            seed=0,
        )
        self.answered = False
        self.failure: str | None = None
        self._num_tokens = 0

    def receive(self, message: FromWorker) -> None:
        """Take a message of the engine about the probe."""
        match message:
            case Tokens(items=items):
                self._num_tokens += sum(count_tokens(item.ids) for item in items)
            case Finished(reason="stop" | "length") if self._num_tokens == PROBE_TOKENS:
                self.answered = True
            case Finished(reason=reason, detail=detail):
                self.failure = (
                    f"the health probe got {self._num_tokens} of {PROBE_TOKENS} tokens: "
                    f"{reason} {detail}".rstrip()
                )
            case Rejected(reason=reason, detail=detail):
                self.failure = f"the health probe was rejected: {reason} {detail}".rstrip()
            case _:
                pass
