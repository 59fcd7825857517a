"""Tags around the text of an answer, which clients do not see.

Kimi K3 and Solar Open write text, thoughts and calls as messages with tags of their own. Owns how
the tags of texts are left out, behind the split of reasoning and in front of the first call, in
whose arguments they are text. Must not know tokens or events.
"""

from gateway.output.reasoning import ReasoningSplitter, Split, State
from gateway.output.tags import find_first, tag_overlap


class PassedTags:
    """A `splitter` whose answer is without the tags `passed`, up to the first of `markers`. Its
    state is never "answer", because tags may always follow.
    """

    __slots__ = ("_has_call", "_markers", "_pending", "_splitter", "_tags")

    def __init__(
        self, splitter: ReasoningSplitter, passed: tuple[str, ...], markers: tuple[str, ...]
    ) -> None:
        self._splitter = splitter
        self._tags = (*passed, *markers)
        self._markers = markers
        self._pending = ""
        self._has_call = False

    @property
    def state(self) -> State:
        """The state of the splitter, with "final" in place of "answer"."""
        state = self._splitter.state
        return "final" if state == "answer" else state

    @property
    def marks(self) -> frozenset[str]:
        """See `ReasoningSplitter`."""
        return self._splitter.marks

    @property
    def is_quiet(self) -> bool:
        """See `ReasoningSplitter`."""
        return self._splitter.is_quiet

    def push(self, text: str) -> Split:
        """Take more text; return what is certain now."""
        split = self._splitter.push(text)
        return Split(split.reasoning, self._without(split.answer)) if split.answer else split

    def flush(self) -> Split:
        """The end of the text."""
        split = self._splitter.flush()
        answer = self._without(split.answer) + self._pending
        self._pending = ""
        return Split(split.reasoning, answer)

    def _without(self, text: str) -> str:
        self._pending += text
        shown = ""
        while not self._has_call:
            at, tag = find_first(self._pending, self._tags)
            if at < 0:
                held = max(tag_overlap(self._pending, tag) for tag in self._tags)
                cut = len(self._pending) - held
                shown, self._pending = shown + self._pending[:cut], self._pending[cut:]
                return shown
            self._has_call = tag in self._markers
            behind = at if self._has_call else at + len(tag)
            shown, self._pending = shown + self._pending[:at], self._pending[behind:]
        shown, self._pending = shown + self._pending, ""
        return shown
