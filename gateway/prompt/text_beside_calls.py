"""What a turn says beside its calls, for templates that show only its calls.

Owns how the words get into a rendered prompt: while the template runs, the name of the turn's first
call begins with the number of the words, between two noncharacters; then the words stand in front
of the tag that opens the calls, where mistral-common writes them from version 7 of its tokenizer
on. Must not know Jinja.
"""

import re
from collections.abc import Sequence
from typing import Final

from gateway.prompt.turns import Turn, with_calls

_EDGE: Final = "\ufdd1"
_NUMBER: Final = re.compile(f"{_EDGE}(\\d+){_EDGE}")
_REPLACEMENT: Final = "\ufffd"


class TextBesideCalls:
    """The texts beside calls, while one prompt is rendered by a template whose calls begin with
    `tag`.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag

    def hidden(self, turns: Sequence[Turn]) -> tuple[list[Turn], list[str]]:
        """The turns without what is said beside calls, and the words, by their numbers."""
        words: list[str] = []
        silent: list[Turn] = []
        for given in turns:
            turn = given
            if _EDGE in (turn["content"] or ""):
                turn = {**turn, "content": turn["content"].replace(_EDGE, _REPLACEMENT)}
            if "tool_calls" not in turn or not turn["content"]:
                silent.append(turn)
                continue
            first, *rest = turn["tool_calls"]
            name = f"{_EDGE}{len(words)}{_EDGE}{first['function']['name']}"
            first = {**first, "function": {**first["function"], "name": name}}
            silent.append({**with_calls(turn, [first, *rest]), "content": ""})
            words.append(turn["content"])
        return silent, words

    def shown(self, text: str, words: Sequence[str]) -> str:
        """The rendered text with the words."""
        if not words:
            return text
        pieces: list[str] = []
        done = 0
        coming = 0
        for found in _NUMBER.finditer(text):
            before = text[done : found.start()]
            if int(found[1]) == coming:
                at = before.rfind(self._tag)
                if at >= 0:
                    before = before[:at] + words[coming] + before[at:]
                coming += 1
            pieces.append(before)
            done = found.end()
        return "".join([*pieces, text[done:]])
