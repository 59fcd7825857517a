"""Long prompts: whether one can fit, then its tokens.

Owns the refusal of a prompt whose bytes prove that it exceeds the window, and of one that turns out
to while it is encoded. Must not know templates or requests' fields.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

from gateway.api import ChatRequest, context_length_exceeded
from gateway.prompt import STEP_CHARS, Draft, ModelText
from gateway.turn.caller import Caller
from gateway.turn.encoding import Encoding


class StepwisePrompt(Protocol):
    """`StepwiseDraft` or `StepwiseText`."""

    num_tokens: int

    def step(self) -> bool:
        """Encode some more; returns whether that was all."""
        ...

    def finish(self) -> bytes:
        """The packed ids, after the last step."""
        ...


class LongPrompt(NamedTuple):
    """A prompt for a model whose window has `window` tokens; None while no worker has said it."""

    encoding: Encoding
    text: ModelText
    request: ChatRequest
    window: int | None

    async def check(self, caller: Caller, texts: Sequence[str]) -> None:
        """Raise `ApiError` 400 if the bytes of `texts` prove that they are too many tokens."""
        if self.window is None or self.text.bound is None:
            return
        fewest = partial(self.text.bound.fewest_tokens, texts, self.window)
        self._check(await self.encoding.run(caller, STEP_CHARS, fewest))

    async def draft(self, caller: Caller, segments: list[str], owner: bytes) -> Draft:
        """The draft of the prompt, in a thread: looking up a text of 28 MB takes 20 ms. Raises as
        `check`.
        """
        await self.check(caller, segments)
        draft = partial(self.text.prompts.draft, segments, owner)
        return await self.encoding.run(caller, STEP_CHARS, draft)

    async def encode(self, caller: Caller, num_chars: int, work: StepwisePrompt) -> bytes:
        """The packed ids of the prompt, whose `num_chars` characters `work` encodes. Raises
        `ApiError` 400 as soon as the prompt has turned out to be too long.
        """
        step = min(num_chars, STEP_CHARS)
        with self.encoding.visit(caller, num_chars) as visit:
            while not await self.encoding.step(visit, step, work.step):
                self._check(work.num_tokens)
            self._check(work.num_tokens, is_least=False)
            return work.finish()

    def _check(self, num_tokens: int, *, is_least: bool = True) -> None:
        if self.window is not None and num_tokens >= self.window:
            raise context_length_exceeded(
                self.window, num_tokens, self.request.prompt_field, is_least=is_least
            )
