"""The roles in the chunks of a chat: a client gets one for each choice.

Owns whether a server says them again in each chunk, as Ollama and OpenRouter do, which the first
chunks with content show. The openai package for Python joins roles as it joins text. Must not know
when chunks are passed on.
"""

from typing import Final, final

from gateway.upstream.sse import data_of, event_of, index_of
from protocol.reading import objects_in, read_object

_FORMS: Final = (
    (b'"delta":{"role":"assistant",', b'"delta":{'),
    (b'"delta": {"role": "assistant", ', b'"delta": {'),
)
"""How a delta begins with the role in the usual forms of JSON, and how without it."""
_IN_NO_CHUNK: Final = b"\0"


@final
class ChunkRoles:
    """The roles of one stream. `is_open`: whether its chunks repeat them is not known yet. Where
    they do (`is_repeated`), `again` is how their deltas begin, and `plain` how they begin for the
    client; no chunk contains `again` if the server writes in a form of its own.
    """

    __slots__ = ("_said", "again", "is_open", "is_repeated", "plain")

    def __init__(self, *, is_open: bool) -> None:
        self._said: set[int] = set()
        self.is_open = is_open
        self.is_repeated = False
        self.again = _IN_NO_CHUNK
        self.plain = b""

    def once(self, event: bytes, *, has_content: bool) -> bytes:
        """The chunk `event` without the roles that were said before."""
        is_first = is_changed = False
        if event.find(b'"role"') >= 0:
            chunk = read_object(data_of(event)) or {}
            for choice in objects_in(chunk.get("choices")):
                delta, index = choice.get("delta"), index_of(choice)
                if not isinstance(delta, dict) or not delta.get("role"):
                    continue
                if index in self._said:
                    del delta["role"]
                    is_changed = True
                else:
                    self._said.add(index)
                    is_first = True
        if has_content and not is_first:
            self.is_open = False
        if not is_changed:
            return event
        self.is_repeated = True
        for again, plain in _FORMS:
            if event.find(again) >= 0:
                self.again, self.plain = again, plain
        return event_of(chunk)
