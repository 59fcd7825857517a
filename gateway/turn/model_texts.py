"""Tokenizers and templates of models, for turns and for the tokenizer endpoints.

Owns the wait for a worker to send them, and the rule that long texts are encoded in a thread. Must
not know requests or HTTP.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from gateway.api import invalid, model_not_found, unavailable
from gateway.prompt import STEP_CHARS, ModelText, StepwiseDraft, StepwiseText
from gateway.routing import ModelView
from gateway.turn.caller import Caller
from gateway.turn.encoding import Encoding
from gateway.turn.model_prompts import PLAIN, ModelPrompt
from gateway.turn.services import Services

T = TypeVar("T")

INLINE_SIZE: Final = 2048
"""Characters or ids. Up to this size work runs in the event loop: a thread costs 98 us, and 2 KB of
text 0.5 ms, in which the GIL is held.
"""

MAX_CHARS_AT_ONCE: Final = 2 * 2**20
"""A text without a place to cut it needs 150 bytes of memory a token, and no window bounds what is
only counted.
"""

FILES_RETRY_AFTER_S: Final = 5


class KnownText(NamedTuple):
    """A model, its tokenizer and template, what the configuration says of them, and the threads in
    which long texts are encoded.
    """

    view: ModelView
    text: ModelText
    own: ModelPrompt
    encoding: Encoding

    async def run(self, caller: Caller, size: int, work: Callable[[], T]) -> T:
        """The result of `work` over `size` characters or ids, in a thread if it takes long."""
        if size <= INLINE_SIZE:
            return work()
        return await self.encoding.run(caller, size, work)

    async def encode(
        self, caller: Caller, num_chars: int, work: StepwiseDraft | StepwiseText
    ) -> bytes:
        """The packed ids of a long text, in steps between which others have the threads. Raises
        `ApiError` 400 for a text that can only be encoded as a whole and is too long for that.
        """
        step = min(num_chars, STEP_CHARS)
        with self.encoding.visit(caller, num_chars) as visit:
            longest = await self.encoding.step(visit, step, lambda: work.num_chars_at_once)
            if longest > MAX_CHARS_AT_ONCE:
                text = (
                    f"A text of {longest} characters without a place to cut it is too long to be "
                )
                text += f"encoded on its own: send at most {MAX_CHARS_AT_ONCE} at once."
                raise invalid(None, text, code="text_too_long")
            while not await self.encoding.step(visit, step, work.step):
                pass
        return work.finish()


async def known_text(services: Services, name: str) -> KnownText:
    """The tokenizer of the model with that name or alias. Raises `ApiError` 404 if there is none,
    400 for a text-level engine and for a model with providers alone, 503 while no worker can send
    the tokenizer.
    """
    while True:
        view = services.dispatcher.model(name)
        if view is None:
            raise model_not_found(name)
        if view.relays:
            text = f"The engine of {view.name} takes text and keeps its tokenizer to itself."
            raise invalid("model", text, code="no_tokenizer")
        if view.has_only_providers:
            text = f"{view.name} has providers alone, which keep their tokenizers to themselves."
            raise invalid("model", text, code="no_tokenizer")
        if view.files_digest is None:
            text = f"No worker of {view.name} has sent its tokenizer yet."
            raise unavailable(text, FILES_RETRY_AFTER_S)
        own = services.prompts.get(view.name, PLAIN)
        found = await coming_text(services, view.name, view.files_digest, own.template)
        if found is not None:
            return KnownText(view, found, own, services.encoding)
        if not _is_ready(services, view.name):
            text = f"No worker of {view.name} is ready to send its tokenizer."
            raise unavailable(text, FILES_RETRY_AFTER_S)


async def coming_text(
    services: Services, model: str, digest: bytes, template: str | None = None
) -> ModelText | None:
    """Wait for the tokenizer of `model` (its own name) with that digest, and this template if one
    is given. Returns None once no ready
    worker has those files: all workers are gone, or have come back with other files. Raises
    `ApiError` as `ModelTexts.text` does.
    """
    if digest not in services.files:
        services.dispatcher.ask_files(model)
    is_coming = partial(_is_ready, services, model, digest)
    return await services.files.text_while(digest, is_coming, template)


def _is_ready(services: Services, model: str, digest: bytes | None = None) -> bool:
    """Whether a worker of the model is ready, with the files of the digest if one is given."""
    view = services.dispatcher.model(model)
    if view is None or view.ready_workers == 0:
        return False
    return digest is None or view.files_digest == digest
