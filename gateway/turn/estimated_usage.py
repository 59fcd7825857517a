"""The usage of an answer whose upstream reports none.

Owns how the tokens of a prompt and an answer are counted then: by the model's own tokenizer where a
worker has sent it, else four bytes a token, and never fewer tokens than the stream had events. A
usage from here is marked as an estimate; it pays no bill. Must not know upstreams or forms of APIs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

import msgspec

from gateway.api import ApiError, ChatRequest, Usage
from gateway.prompt import ModelText, encode_raw
from gateway.turn.model_prompts import PLAIN
from gateway.turn.preparation import encoded_prompt
from gateway.turn.relay_job import text_of
from protocol.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from gateway.turn.caller import Caller
    from gateway.turn.services import Services

_BYTES: Final = 4
"""About how many bytes a token has in the texts and JSON of agents."""


@final
class UsageEstimate:
    """Estimates for one request to `model`."""

    def __init__(
        self, services: Services, request: ChatRequest, caller: Caller, model: str
    ) -> None:
        self._services = services
        self._request = request
        self._caller = caller
        self._model = model

    async def of(self, said: str, num_events: int = 0) -> Usage:
        """The usage of an answer that says `said`."""
        text = self._known_text()
        prompt = await self._prompt_tokens(text)
        tokens = await self._tokens_of(text, said)
        return Usage(prompt, 0, max(1, tokens, num_events), is_estimate=True)

    async def _tokens_of(self, text: ModelText | None, said: str) -> int:
        size = len(said.encode("utf-8", "replace"))
        if text is not None and said:
            encode = partial(encode_raw, text, said, add_special_tokens=False)
            try:
                return len(await self._services.encoding.run(self._caller, size, encode))
            except ApiError:
                pass  # too many wait to be encoded
        return -(-size // _BYTES)

    def _known_text(self) -> ModelText | None:
        view = self._services.dispatcher.model(self._model)
        if view is None or view.files_digest is None:
            return None
        own = self._services.prompts.get(view.name, PLAIN)
        return self._services.files.known(view.files_digest, own.template)

    async def _prompt_tokens(self, text: ModelText | None) -> int:
        if text is not None:
            own = self._services.prompts.get(self._model, PLAIN)
            variables = own.with_variables(self._request.template_kwargs)
            request = msgspec.structs.replace(self._request, template_kwargs=variables)
            try:
                prompt = await encoded_prompt(self._services, text, request, self._caller)
                return len(prompt) // TOKEN_BYTES
            except ApiError:
                pass  # the model's template refuses the request, or too many wait
        return max(1, len(text_of(self._request.raw)) // _BYTES)
