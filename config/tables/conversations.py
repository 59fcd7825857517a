"""`[limits]`, `[loops]` and `[[repairs]]`: what is done about the conversations of agents.

Must not know how a conversation is recognised.
"""

import re
from typing import Annotated, Literal

import msgspec

from config.tables.values import Amount, ClientName, ConfigTable, Positive


class ConversationLimitsConfig(ConfigTable, frozen=True):
    """`[limits.conversation]`: what one conversation of an agent may use; without a value there is
    no limit. `money` is in units of the ledger's currency, at all providers together. A key has its
    own in `conversation = { ... }`, which replace these one by one.
    """

    tokens: Annotated[int, msgspec.Meta(ge=1, le=2**50)] | None = None
    money: Amount | None = None
    turns: Positive | None = None
    minutes: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] | None = None

    @property
    def any(self) -> bool:
        return self != ConversationLimitsConfig()


class AllLimitsConfig(ConfigTable, frozen=True):
    """`[limits]`: limits that are of no provider and no key."""

    conversation: ConversationLimitsConfig = ConversationLimitsConfig()


Rounds = Annotated[int, msgspec.Meta(ge=0, le=64)]


class LoopsConfig(ConfigTable, frozen=True):
    """`[loops]`: what is done about an agent that repeats calls which bring nothing new, by the
    number of repeats after which it is done (0: never; at least 3). `alert` publishes an event,
    of which receivers of alerts learn; `header` adds `x-herma-loop` to the answer; `hint` adds a
    line to the prompt; `slow` holds each request for `slow_s`; `model` asks `other_model` instead;
    `end` refuses the request with an error.
    """

    alert: Rounds = 5
    header: Rounds = 0
    hint: Rounds = 0
    slow: Rounds = 0
    model: Rounds = 0
    end: Rounds = 0
    slow_s: Annotated[float, msgspec.Meta(gt=0, le=600)] = 10.0
    other_model: str | None = None

    @property
    def first(self) -> int | None:
        """The fewest repeats after which anything is done; None if nothing ever is."""
        steps = (self.alert, self.header, self.hint, self.slow, self.model, self.end)
        return min(filter(None, steps), default=None)

    def __post_init__(self) -> None:
        for name in ("alert", "header", "hint", "slow", "model", "end"):
            if getattr(self, name) in {1, 2}:
                raise ValueError(f"{name} is 0, or at least 3: agents do some things twice")


class RepairConfig(ConfigTable, frozen=True):
    """`[[repairs]]`: what is done to the prompts of a client whose changing lines break its prefix
    cache (`herma doctor --prefixes` names them). `strip` takes the lines of the system prompt that
    match `lines` as a whole, `move` puts them behind the last user message, and `sort_tools`
    orders tools by their names. Every other byte stays; where that is not possible nothing is done.
    """

    client: ClientName
    do: Literal["strip", "move", "sort_tools"]
    lines: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)] | None = None
    on: bool = True

    def __post_init__(self) -> None:
        if (self.lines is None) == (self.do != "sort_tools"):
            raise ValueError("strip and move need `lines`, sort_tools has none")
        if self.lines is None:
            return
        try:
            pattern = re.compile(self.lines)
        except re.error as error:
            raise ValueError(f"lines is no regular expression: {error}") from error
        if pattern.fullmatch("") is not None:
            raise ValueError("lines matches an empty line, and so takes all of them")
