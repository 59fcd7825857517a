"""What the text of an upstream's chat answer refers to: pages of the web, files.

Owns the places where servers write it: `annotations` of a message or delta (OpenAI, OpenRouter),
else `search_results` or `citations` beside the choices (Perplexity, xAI). Must not know the APIs of
clients.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, final

import msgspec

from gateway.api import Annotation
from protocol.reading import objects_in

MAX_ANNOTATIONS: Final = 1024
"""The most annotations of one answer; more are dropped."""

_encode: Final = msgspec.json.Encoder().encode


@final
class Annotations:
    """The annotations of one answer. Servers repeat them in several chunks: each counts once."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._new: list[Annotation] = []

    def read(self, answer: dict[str, Any], said: dict[str, Any]) -> None:
        """Note the annotations of a chunk or of a whole answer; `said` is its choice's delta or
        message.
        """
        given = said.get("annotations")
        found = _of_message(objects_in(given)) if given else _beside_choices(answer)
        for one in found:
            key = _encode(one)
            if key not in self._known and len(self._known) < MAX_ANNOTATIONS:
                self._known.add(key)
                self._new.append(one)

    def take(self) -> tuple[Annotation, ...]:
        """The annotations that were not taken before."""
        new, self._new = self._new, []
        return tuple(new)


def _of_message(given: Iterable[dict[str, Any]]) -> Iterator[Annotation]:
    """A chat nests the fields of an annotation under the name of its type."""
    for one in given:
        kind = one.get("type")
        if isinstance(kind, str):
            inner = one.get(kind)
            yield {"type": kind, **inner} if isinstance(inner, dict) else one


def _beside_choices(answer: dict[str, Any]) -> Iterator[Annotation]:
    given = answer.get("search_results") or answer.get("citations")
    for one in given if isinstance(given, list) else ():
        page = {"url": one} if isinstance(one, str) else one
        if isinstance(page, dict) and isinstance(page.get("url"), str):
            title = page.get("title")
            named = {"title": title} if isinstance(title, str) else {}
            yield {"type": "url_citation", "url": page["url"], **named}
