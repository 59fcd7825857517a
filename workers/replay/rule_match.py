"""Which rule of a script answers a prompt.

Owns the matching and the count of each rule's answers. Must not know tokens: prompts are text here.
"""

import re
from typing import final

from workers.replay.script import Rule, Script


@final
class Casting:
    """The rules of one engine start, by their index in the script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._patterns = [
            None if rule.matches is None else re.compile(rule.matches) for rule in script.rules
        ]
        self._num_answers = [0] * len(script.rules)

    def choose(self, prompt: str) -> int | None:
        """The first rule that fits and has answers left, which counts as one of them."""
        for index in self.fitting(prompt):
            times = self._script.rules[index].times
            if times is None or self._num_answers[index] < times:
                self._num_answers[index] += 1
                return index
        return None

    def fitting(self, prompt: str) -> list[int]:
        """Every rule that fits, used up or not."""
        user = last_user_text(prompt, self._script)
        return [
            index
            for index, rule in enumerate(self._script.rules)
            if self._fits(rule, index, user if rule.where == "user" else prompt)
        ]

    def _fits(self, rule: Rule, index: int, text: str) -> bool:
        if rule.contains is not None and rule.contains not in text:
            return False
        pattern = self._patterns[index]
        return pattern is None or pattern.search(text) is not None


def last_user_text(prompt: str, script: Script) -> str:
    """What stands after the last user's mark; the whole prompt if it has none."""
    _, mark, rest = prompt.rpartition(script.user_mark)
    return rest.partition(script.end_mark)[0] if mark else prompt
