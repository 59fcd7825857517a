"""What a call looks like in a format, in llguidance's Lark: the parts from which formats are made.

Owns what is known of a format whose calls have a grammar. Must not know any format, schemas or
requests.

A tag that begins a call must be one token: one of several could not be told from text.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from gateway.output.tools.parameter_grammar import UnenforcedKeyword
from gateway.output.tools.value_tags import quoted

LoneId = Callable[[str], int | None]
"""The token that is a text, if there is one."""


class Channels(NamedTuple):
    """Answers of several messages. `end` ends a thought that the prompt has opened, and `thoughts`
    may follow. `before` are those with texts between them. A text stands between `final` and
    `over`; `to_call` is between texts and a call, `at_once` before a call with no text.
    """

    end: str
    thoughts: str
    before: str
    to_call: str = ""
    at_once: str = ""
    final: str = ""
    over: str = ""

    def answer(self, more: str, *, is_thinking: bool) -> str:
        """Any text or calls; `more` is the rule of further calls."""
        text, calls = f"{self.final} TEXT {self.over}", f"{self.to_call} call {more}"
        return self._behind(f"{self.before} ({text} | {calls})", is_thinking=is_thinking)

    def form(self, content: str, more: str | None, *, is_thinking: bool) -> str:
        """A text that follows the rule `content`, or calls; None for `more` allows no calls. A text
        before calls is not allowed, because its beginning cannot be told from the beginning of
        `content`.
        """
        found = f"{self.final} {content} {self.over}"
        if more is not None:
            found = f"({found} | {self.at_once} call {more})"
        return self._behind(f"{self.thoughts} {found}", is_thinking=is_thinking)

    def calls(self, more: str, *, is_thinking: bool) -> str:
        """Calls alone, with thoughts before them."""
        return self._behind(f"{self.thoughts} {self.at_once} call {more}", is_thinking=is_thinking)

    def _behind(self, rest: str, *, is_thinking: bool) -> str:
        return f"TEXT {self.end} {rest}" if is_thinking else rest


class Arguments(Protocol):
    """Arguments that are no JSON."""

    def rules(self, rule: str, schema: str) -> Sequence[str]:
        """The lines of `rule` for arguments of the schema, which is JSON."""
        ...

    def limits(self, schema: str) -> tuple[UnenforcedKeyword, ...]:
        """The keywords that the rules of this schema leave out."""
        ...


class CallSyntax(NamedTuple):
    """Around a call: `before` what names it, `lead` and then `head` of the name, `gap`, the
    arguments, `end`; `more` are further calls. `rest` stands before the arguments where the prompt
    has the name, and `named_end` is how such a prompt ends. `is_bare`: calls have no tag before
    them, and begin an answer. `arguments`: they are no JSON. Rules may be `call`, `named` (a call
    from `lead` to its arguments) and `again` (the same without `lead`).
    """

    before: str
    head: Callable[[str], str]
    end: str
    more: str
    lead: str = ""
    gap: str = ""
    rest: str = ""
    named_end: str = ""
    is_bare: bool = False
    channels: Channels | None = None
    arguments: Arguments | None = None

    def is_named(self, begun: str, name: str) -> bool:
        """Whether a call that is `begun` has the name already."""
        return begun.rstrip().endswith(self.named_end.replace("NAME", name))


Make = Callable[[str, LoneId], CallSyntax | None]
"""Makes the syntax of a format in the version of a template. None if the tokenizer has no token for
a tag that it needs.
"""

SPACE: Final = '" "?'

LINE: Final = '"\\n"?'

NAME_KEY: Final = quoted('{"name":')


def tag(lone_id: LoneId, text: str) -> str:
    found = lone_id(text)
    return quoted(text) if found is None else f"<[{found}]>"


def lone(lone_id: LoneId, *texts: str) -> list[str] | None:
    """The tags as tokens; None if one of them is no token."""
    ids = [lone_id(text) for text in texts]
    return None if None in ids else [f"<[{one}]>" for one in ids]
