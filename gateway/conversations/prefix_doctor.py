"""The prefix doctor: where the next prompt of a conversation departs from the one before, and why.

Owns the last prompts of conversations as token ids, in memory alone, and the findings. A finding
has a kind, a place and lengths: never a word of a prompt. Must not know how ids become text.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from gateway.api import Message
from gateway.conversations.causes import (
    Kind,
    cause_of_line,
    changed_chars,
    is_mark,
    is_summary,
)
from gateway.conversations.conversation import KnownConversation, SentPrompt
from protocol.tokens import TOKEN_BYTES

MAX_BYTES: Final = 256 * 2**20
"""The bound on the last prompts of all conversations. When they exceed it, an eighth of it is
freed.
"""
MAX_STRANDS: Final = 3
"""Prompts of one conversation to one model: its own, and side calls and subagents under the same
name.
"""
TAIL_TOKENS: Final = 48
"""A prompt ends with what opens the answer, which a template may write otherwise behind it."""
MIN_LOST: Final = 32
"""Fewer tokens are less than a block."""
BEFORE: Final = 64
AFTER: Final = 384
"""Tokens around the first difference that are looked at."""
SHARE: Final = 0.2
"""The share of a prompt's messages that stand in the next prompt of its strand, at least."""
MAX_CLIENTS: Final = 32
MAX_FINDINGS: Final = 32

Decode = Callable[[Sequence[int]], str]


class PrefixFinding(NamedTuple):
    """The prompt departs at token `at` from the one before, in `place`, over `length` characters;
    `lost_tokens` had to be computed again.
    """

    kind: Kind
    place: str
    at: int
    length: int
    lost_tokens: int


class PrefixRow(msgspec.Struct, frozen=True):
    """What breaks the prefixes of a client's prompts, and what that has cost so far."""

    client: str
    kind: str
    place: str
    times: int
    length: int
    lost_tokens: int
    lost_s: float


class PrefixList(msgspec.Struct, frozen=True):
    """The answer of `GET /admin/prefixes`."""

    prefixes: tuple[PrefixRow, ...]


class PrefixDoctor:
    """Compares the prompts of each conversation. `num_bytes`: what all their last prompts take."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self._rows: dict[tuple[str, str, str], list[float]] = {}

    def note(
        self,
        one: KnownConversation,
        prompt: SentPrompt,
        messages: Sequence[Message],
        decode: Decode,
    ) -> PrefixFinding | None:
        """`one` has a new prompt, made of `messages`: what broke its prefix, if anything did. It is
        kept until `forget`, which must be called for each conversation that is gone.
        """
        finding = None
        if strands := one.prompts:
            alike = [each for each in strands if each.model == prompt.model]
            before = gone = _strand_of(alike, prompt)
            if before is not None:
                finding = compare(before, prompt, messages, decode)
            elif len(alike) >= MAX_STRANDS:
                gone = alike[0]
            if gone is not None:
                strands = tuple(each for each in strands if each is not gone)
                self.num_bytes -= gone.num_bytes
        one.prompts = (*strands, prompt)
        self.num_bytes += prompt.num_bytes
        return finding

    def make_room(self, oldest_first: Callable[[], Iterable[KnownConversation]]) -> None:
        """Forget the oldest prompts if all take too much; call it after `note`."""
        if self.num_bytes <= self._max_bytes:
            return
        for one in oldest_first():
            self.forget(one)
            if self.num_bytes <= self._max_bytes - self._max_bytes // 8:
                return

    def forget(self, one: KnownConversation) -> None:
        """Forget the prompts of a conversation."""
        for prompt in one.prompts:
            self.num_bytes -= prompt.num_bytes
        one.prompts = ()

    def count(self, client: str, finding: PrefixFinding, lost_s: float) -> None:
        """Add a finding to those of the client."""
        place = finding.place.partition("[")[0]
        row = client, finding.kind, place
        if row not in self._rows and len(self._rows) >= MAX_CLIENTS * MAX_FINDINGS:
            row = "other", finding.kind, place
        sums = self._rows.setdefault(row, [0, 0, 0, 0.0])
        sums[0] += 1
        sums[1] = max(sums[1], finding.length)
        sums[2] += finding.lost_tokens
        sums[3] += lost_s

    def rows(self) -> tuple[PrefixRow, ...]:
        """All findings so far, the most costly first."""
        rows = [
            PrefixRow(*row, int(times), int(length), int(lost), round(lost_s, 3))
            for row, (times, length, lost, lost_s) in self._rows.items()
        ]
        return tuple(sorted(rows, key=lambda row: -row.lost_tokens))


def tools_of(tools: Sequence[dict[str, Any]]) -> tuple[tuple[str, int], ...]:
    """The name and a hash of each tool; the order of keys counts, as it does in a prompt."""
    return tuple(
        [(str(tool.get("function", tool).get("name", "")), hash(_encode(tool))) for tool in tools]
    )


def first_difference(one: bytes, other: bytes) -> int:
    """How many tokens two packed prompts share at their beginning, by bisection."""
    low, high = 0, min(len(one), len(other)) // TOKEN_BYTES
    if other.startswith(one) or one.startswith(other):  # usual; no copy is made
        return high
    while low < high - 1:
        middle = (low + high) // 2
        begin, end = low * TOKEN_BYTES, middle * TOKEN_BYTES
        if one[begin:end] == other[begin:end]:
            low = middle
        else:
            high = middle
    return low


def compare(
    before: SentPrompt, after: SentPrompt, messages: Sequence[Message], decode: Decode
) -> PrefixFinding | None:
    """Where `after`, made of `messages`, departs from `before`; None if it goes on with it."""
    at = first_difference(before.ids, after.ids)
    num_before = len(before.ids) // TOKEN_BYTES
    lost = num_before - at
    if lost <= TAIL_TOKENS or lost < MIN_LOST:
        return None
    one, other = (_window(ids, at, decode) for ids in (before.ids, after.ids))
    length = changed_chars(one, other)
    kind, place = _cause(before, after, messages, one, other)
    return PrefixFinding(kind, place, at, length, lost)


def _cause(
    before: SentPrompt, after: SentPrompt, messages: Sequence[Message], one: str, other: str
) -> tuple[Kind, str]:
    if before.tools != after.tools:
        return _tools_changed(before, after, one, other), "tools"
    index = _first_changed(before.hashes, after.hashes)
    if index is None:
        line = cause_of_line(one, other)
        return ("time stamp" if line == "time stamp" else "template"), "template"
    message = messages[index]
    text = message.content or ""
    is_system = message.role in {"system", "developer"}
    place = "system" if is_system else f"messages[{index}] ({message.role})"
    shift = _shift(before.hashes, after.hashes)
    if shift is not None and shift != 0:
        is_told = any(is_summary(each.content or "") for each in messages[index : index + 2])
        kept = before.hashes[index + shift :] if shift > 0 else array("q")
        is_cut = len(kept) > 0 and after.hashes[index : index + len(kept)] == kept
        return ("edited summary" if is_told or not is_cut else "dropped history"), place
    if (line := cause_of_line(one, other)) is not None:
        return line, place
    later = "\n".join(each.content or "" for each in messages[index + 1 :])
    if is_mark(one, other, later):
        return "rolling mark", place
    if is_summary(text):
        return "edited summary", place
    if is_system:
        return "changed instructions", place
    return ("edited result" if message.role == "tool" else "edited message"), place


def _tools_changed(before: SentPrompt, after: SentPrompt, one: str, other: str) -> Kind:
    if sorted(before.tools) == sorted(after.tools):
        return "reordered tools"
    names = [name for name, _ in before.tools]
    if names == [name for name, _ in after.tools]:
        # The same tools, written otherwise.
        return cause_of_line(one, other) or "changed tools"
    return "changed tools"


def _first_changed(before: "array[int]", after: "array[int]") -> int | None:
    for index, one in enumerate(before):
        if index >= len(after):
            return len(after) - 1
        if after[index] != one:
            return index
    return None


def _shift(before: "array[int]", after: "array[int]") -> int | None:
    """How many messages earlier the last ones of `before` stand in `after`; None if they do not."""
    for back in range(1, min(4, len(before)) + 1):
        last = len(before) - back
        if last < len(after) and after[last] == before[last]:
            return 0
    pair = before[-2:]
    for at in range(len(after) - 2, -1, -1):
        if after[at : at + 2] == pair:
            return len(before) - 2 - at
    return None


def _strand_of(strands: Sequence[SentPrompt], prompt: SentPrompt) -> SentPrompt | None:
    """The prompt that this one follows."""
    for one in strands:
        num_own = len(one.ids) // TOKEN_BYTES - TAIL_TOKENS
        is_longer = num_own > 0 and len(prompt.hashes) >= len(one.hashes) > 0
        if is_longer and first_difference(one.ids, prompt.ids) >= num_own:
            return one
    best, most = None, 0.0
    said = set(prompt.hashes[prompt.num_system :])
    for one in strands:
        own = one.hashes[one.num_system :]
        share = sum(each in said for each in own) / max(1, len(own))
        if share > most and share >= SHARE and _follows(one, prompt):
            best, most = one, share
    return best


def _follows(one: SentPrompt, prompt: SentPrompt) -> bool:
    """Whether `prompt` may be the next one of `one`: it has more messages, or those at the end of
    `one` behind a summary.
    """
    if one.hashes[: one.num_system] != prompt.hashes[: prompt.num_system] and (
        {name for name, _ in one.tools} != {name for name, _ in prompt.tools}
    ):
        return False  # an agent with other instructions and other tools
    if len(prompt.hashes) > len(one.hashes):
        return True
    return len(one.hashes) > 4 and sum(each in prompt.hashes for each in one.hashes[-4:]) >= 3


def _window(ids: bytes, at: int, decode: Decode) -> str:
    begin = max(0, at - BEFORE) * TOKEN_BYTES
    packed = array("I", ids[begin : (at + AFTER) * TOKEN_BYTES])
    return decode(packed)


_encode: Final = msgspec.json.Encoder().encode
