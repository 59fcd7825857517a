"""The prefix doctor: where the next prompt of a conversation departs from the one before, and why.

Owns the last prompts of conversations as token ids, in memory alone, and the findings. A finding
has a kind, a place and lengths: never a word of a prompt. Must not know how ids become text.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
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
from protocol.tokens import TOKEN_BYTES

MAX_BYTES: Final = 256 * 2**20
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
    """The last prompts of all conversations, `max_bytes` together; the oldest go first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self._strands: OrderedDict[Hashable, list[SentPrompt]] = OrderedDict()
        self._rows: dict[tuple[str, str, str], list[float]] = {}

    def __len__(self) -> int:
        return len(self._strands)

    def note(
        self, owner: Hashable, prompt: SentPrompt, messages: Sequence[Message], decode: Decode
    ) -> PrefixFinding | None:
        """`owner` has a new prompt, made of `messages`: what broke its prefix, if anything did. It
        is kept until `forget`, which must be called for each owner that is gone.
        """
        finding = None
        strands = self._strands.get(owner)
        if strands is None:
            self._strands[owner] = [prompt]
        else:
            self._strands.move_to_end(owner)
            alike = [one for one in strands if one.model == prompt.model]
            if (before := _strand_of(alike, prompt)) is not None:
                finding = compare(before, prompt, messages, decode)
                strands.remove(before)
                self.num_bytes -= before.num_bytes
            elif len(alike) >= MAX_STRANDS:
                strands.remove(alike[0])
                self.num_bytes -= alike[0].num_bytes
            strands.append(prompt)
        self.num_bytes += prompt.num_bytes
        while self.num_bytes > self._max_bytes:
            _, oldest = self._strands.popitem(last=False)
            self.num_bytes -= sum(one.num_bytes for one in oldest)
        return finding

    def forget(self, owner: Hashable) -> None:
        """Forget the prompts of a conversation that is forgotten."""
        for one in self._strands.pop(owner, ()):
            self.num_bytes -= one.num_bytes

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
