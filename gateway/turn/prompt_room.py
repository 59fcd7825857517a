"""Whether a long prompt can fit, before its body is decoded.

Owns for which requests that can be told: those that no provider may answer, which a model's window
refuses whatever else the body says. Must not know bodies or HTTP.
"""

from typing import NamedTuple

from gateway.api import LongTexts, PromptField, context_length_exceeded
from gateway.prompt import TokenBound
from gateway.turn.model_prompts import PLAIN
from gateway.turn.services import Services


class PromptRoom(NamedTuple):
    """A window in tokens, and what is known of the tokens of a text."""

    window: int
    bound: TokenBound

    def check(self, found: LongTexts, field: PromptField) -> None:
        """Raise `ApiError` 400 if this in `field` proves a prompt too long."""
        if found.num_ids > self.window:
            raise context_length_exceeded(self.window, found.num_ids, field)
        num_tokens = self.bound.fewest_in_json(found.texts, self.window)
        if num_tokens > self.window:
            raise context_length_exceeded(self.window, num_tokens, field, is_least=True)


def prompt_room(services: Services, name: str, field: PromptField) -> PromptRoom | None:
    """What the model with that name or alias has room for; None if that is not known, or if the
    prompt may be read by others or in part.
    """
    view = services.dispatcher.model(name)
    if view is None or view.relays or view.files_digest is None or view.context_length is None:
        return None
    if view.cloud and view.fallback:
        return None
    own = services.prompts.get(view.name, PLAIN)
    text = services.files.known(view.files_digest, own.template)
    if text is None or text.bound is None:
        return None
    if field != "prompt" and not text.shows_questions:
        return None
    return PromptRoom(view.context_length, text.bound)
