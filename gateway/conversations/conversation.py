"""One conversation: who has it, and what it has cost so far.

Owns the counts and the row that operators see. It holds names, numbers and kinds only: no text of a
prompt or an answer. Must not know how conversations are recognised.
"""

from array import array
from typing import Any, Final

import msgspec

from gateway.api import Usage
from gateway.conversations.returns import Away

OK: Final = 200
NOT_FOUND: Final = 404
CLIENT_LEFT: Final = 499
NO_HASHES: Final = array("q")


class TurnEnd(msgspec.Struct, frozen=True, gc=False):
    """How a turn has ended: with an HTTP `status`, for `cost` micro-units, after `busy_s`."""

    status: int = OK
    error: str = ""
    usage: Usage | None = None
    is_cloud: bool = False
    cost: int = 0
    busy_s: float = 0.0


class SentPrompt(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A prompt that was sent to an engine of `model`. `ids` are packed; `hashes` has one per
    message, `tools` the name and the hash of each tool.
    """

    ids: bytes
    hashes: "array[int]"
    tools: tuple[tuple[str, int], ...]
    num_system: int
    model: str = ""

    @property
    def num_bytes(self) -> int:
        return len(self.ids) + 8 * len(self.hashes) + 120 * len(self.tools) + 400


class KnownConversation(msgspec.Struct, eq=False, gc=False):
    """All that is known of one conversation, so that a request looks it up once.

    `name` is unique within `key`, so `owner`, both together, tells it from all others. `source`
    says where the name comes from. Times are Unix seconds, `cost` micro-units of the ledger's
    currency. A pause is the time between the end of a turn and the next one. `loop` describes the
    loop that it is in, if any. `digest` names it to workers once one keeps its prefix.

    `PromptChains` writes the hashes by which a prompt without a sure name finds it: `ends` of the
    latest prompts (None: its name is sure) for `scope`, the `tail` of the last one, of
    `num_messages`. `may_repeat`: that one got no answer, so the same prompt again is a retry and no
    other conversation. `PrefixDoctor` writes the last `prompts`, `ReturnModel` knows `away`.
    """

    name: str
    key: str
    client: str
    model: str
    source: str
    parent: str
    began_at: float
    seen_at: float
    owner: tuple[str, str]
    is_forgotten: bool = False
    scope: int = 0
    ends: list[int] | None = None
    tail: "array[int]" = NO_HASHES
    num_messages: int = 0
    may_repeat: bool = False
    prompts: tuple[SentPrompt, ...] = ()
    away: Away | None = None
    digest: bytes = b""
    num_open: int = 0
    children: int = 0
    turns: int = 0
    cloud_turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: int = 0
    tool_calls: int = 0
    calls_shown: int = 0
    errors: int = 0
    last_error: str = ""
    busy_s: float = 0.0
    paused_s: float = 0.0
    longest_pause_s: float = 0.0
    loop: str = ""
    loops: int = 0
    loop_repeats: int = 0
    breaks: int = 0
    lost_tokens: int = 0
    lost_s: float = 0.0

    def begin(self, now: float, model: str, num_calls: int) -> None:
        """A turn begins, whose prompt holds `num_calls` results of tools."""
        if self.num_open == 0 and self.turns:
            pause_s = max(0.0, now - self.seen_at)
            self.paused_s += pause_s
            self.longest_pause_s = max(self.longest_pause_s, pause_s)
        self.num_open += 1
        self.turns += 1
        self.seen_at, self.model = now, model
        if num_calls > self.calls_shown:
            self.tool_calls += num_calls - self.calls_shown
        self.calls_shown = num_calls

    def end(self, now: float, end: TurnEnd) -> None:
        """A turn has ended."""
        self.num_open -= 1
        self.seen_at = now
        self.busy_s += end.busy_s
        self.cloud_turns += end.is_cloud
        self.cost += end.cost
        if end.status == NOT_FOUND:
            self.model = ""  # the client's text is not the name of a model
        if end.status not in {OK, CLIENT_LEFT}:
            self.errors += 1
            self.last_error = end.error or str(end.status)
        if (usage := end.usage) is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.cached_tokens += usage.cached_tokens
            self.completion_tokens += usage.completion_tokens


class ConversationRow(msgspec.Struct, frozen=True):
    """A conversation as `GET /admin/conversations` shows it. It began `children`
    others. Its prompts broke the prefix cache `breaks` times, which lost `lost_tokens` and `lost_s`
    seconds.
    """

    name: str
    key: str
    client: str
    model: str
    source: str
    parent: str
    children: int
    is_open: bool
    began_at: float
    seen_at: float
    turns: int
    cloud_turns: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: int
    tool_calls: int
    errors: int
    last_error: str
    busy_s: float
    paused_s: float
    longest_pause_s: float
    loop: str
    loops: int
    breaks: int
    lost_tokens: int
    lost_s: float


class ConversationList(msgspec.Struct, frozen=True):
    """The answer of `GET /admin/conversations`; costs are micro-units of `currency`."""

    currency: str
    unix_time: float
    conversations: tuple[ConversationRow, ...]


def row_of(one: KnownConversation) -> ConversationRow:
    """The row of `one` now; numbers with a fraction have three digits of it."""
    fields: dict[str, Any] = {}
    for name in ConversationRow.__struct_fields__:
        value = one.num_open > 0 if name == "is_open" else getattr(one, name)
        fields[name] = round(value, 3) if isinstance(value, float) else value
    return ConversationRow(**fields)
