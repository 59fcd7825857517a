"""The text half of a model, for those who ask for nothing else of it.

Owns how a tokenizer is found and where long texts are encoded. Must not know requests or HTTP.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import trio

from gateway.actors.services import Services
from gateway.core.errors import model_not_found, unavailable
from gateway.core.model_text import ModelText
from gateway.core.models import ModelView

T = TypeVar("T")

INLINE_SIZE: Final = 2048
"""Characters or ids. Less is done at once: a thread costs 98 us, 2 KB of text 0.5 ms."""

FILES_RETRY_AFTER_S: Final = 5
_THREADS: Final = trio.CapacityLimiter(1)
"""Turns have their own; who only counts tokens waits for others that do."""


class KnownText(NamedTuple):
    """A model and its text half."""

    view: ModelView
    text: ModelText


async def known_text(services: Services, name: str) -> KnownText:
    """What the model that answers to `name` speaks. Raises `ApiError` 404 for no such model, 503
    while no worker has told its tokenizer.
    """
    view = services.dispatcher.model(name)
    if view is None:
        raise model_not_found(name)
    if view.files_digest is None:
        text = f"No worker of {view.name} has brought its tokenizer yet."
        raise unavailable(text, FILES_RETRY_AFTER_S)
    if view.files_digest not in services.files:
        services.dispatcher.ask_files(view.name)
    return KnownText(view, await services.files.text(view.files_digest))


async def beside_the_loop(size: int, work: Callable[[], T]) -> T:
    """The result of `work` over so many characters or ids, in a thread if it takes long."""
    if size <= INLINE_SIZE:
        return work()
    return await trio.to_thread.run_sync(work, limiter=_THREADS, abandon_on_cancel=True)
