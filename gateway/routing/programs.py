"""Which conversations keep their place when not all of them fit into the workers' memory.

Owns the conversations that take turns, which of them are resident, and the queue of the others.
Must not know workers, prefixes or costs: capacity and times are arguments.

An agent's conversation is a program: a request for each turn, and nearly all of its prompt is that
of the turn before. If the conversations that work at the same time need more memory than there is,
each turn evicts the prefix of another one, which is then computed again: 8 agents had a hit rate of
0.97, 16 on the same card 0.39, 32 of them 0.05 (InferenceX#2268). No order of eviction helps,
because all come back at once. So conversations take turns at being resident: the ones that fit are
resident for several requests, and the others wait in a line.

- A conversation is a program from its second request on; the first is never held.
- While all programs fit, nothing waits, and requests need not ask (`is_full`). Each counts with
  all its tokens, also those that others share (instructions, tools), so more may fit than the sum
  says. All programs count as fitting until a turn finds less than half of what its conversation
  left in memory.
- A program is held only if that pays. If half of what fits into the memory can be computed anew
  while the program goes through one cycle (its pause and its answer), its misses fit between those
  of others, and it would wait for longer than it saves. So chats of people, and agents whose tools
  take long, are not held; neither are short prompts.
- A resident keeps its place for a quantum, `SWITCHES` times what it costs to compute its prefix
  again, then gives it up if others wait and it is between two requests. One that stays away for
  `PATIENCE_S` gives it up, too.
- The next in line is a program of the key that holds least for its weight, the longest waiting one
  first. After `max_pause_s` of waiting a conversation becomes resident at once.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

MAX_PROGRAMS: Final = 4096
SWITCHES: Final = 40.0
"""A quantum is this many times the prefill time of the whole prefix, unless `max_pause_s` is
shorter, so a switch takes at most a fortieth of a resident's time (docs/routing-benchmark.md has
20, too).
"""
LEAST_QUANTUM_S: Final = 5.0
PATIENCE_S: Final = 10.0
"""95 % of agents' pauses are shorter (InferenceX#2268)."""
MISSING: Final = 0.5
"""The share of turns that would find nothing if none were held: 0.6 to 0.9 of agents at 1.5 to 4
times what fits, under 0.1 where pauses are long and memory lacks a little.
"""
LOST: Final = 0.5
"""A turn that finds less than this part of what its conversation left says that memory lacks."""
LOST_COUNTS_S: Final = 60.0
"""How long such a turn shows that memory lacks. Programs that wait in line show it too."""
USABLE: Final = 0.95
"""The part of the workers' memory that residents fill: their answers grow."""


class Program(msgspec.Struct, eq=False):
    """One conversation. It holds `tokens`, has ended `turns` requests, the last one at `seen_at`,
    and stayed away between them for `away_s` together. At most one of the following is set:
    `resident_since`, and `waits_since`, since when it waits in line.
    """

    name: str
    key: str
    weight: float
    tokens: int = 0
    turns: int = 0
    away_s: float = 0.0
    seen_at: float = 0.0
    resident_since: float | None = None
    waits_since: float | None = None


class Claim(msgspec.Struct, frozen=True):
    """What a request that came at `asked_at` needs: `tokens` for its prompt and its answer, of the
    `capacity` of `num_workers` together. To bring back what its conversation had in memory takes
    `switch_s`, its answer `answer_s` where nothing disturbs it.
    """

    asked_at: float
    tokens: int
    capacity: int
    num_workers: int
    switch_s: float
    answer_s: float


class Programs:
    """The programs of one model. `has_request` says whether a request of a key's conversation waits
    or runs. With a `max_pause_s` of 0 none is ever held. `is_full`: not all programs fit, by their
    tokens and by what their turns found, or some wait; while it is False every request may start.
    """

    def __init__(self, has_request: Callable[[str, str], bool], max_pause_s: float = 0.0) -> None:
        self.max_pause_s = max_pause_s
        self.is_full = False
        self.held_tokens = 0
        self._has_request = has_request
        self._table: OrderedDict[str, Program] = OrderedDict()
        self._residents: dict[str, Program] = {}
        self._line: dict[str, Program] = {}
        self._quantum_s = LEAST_QUANTUM_S
        self._lacking = 0
        """The tokens of the program that did not fit last, until there is room for them."""
        self._lost_at = -math.inf

    def tokens_of(self, name: str) -> int:
        """The tokens that the conversation's last request left in memory; 0 if the conversation is
        not a program that may be held.
        """
        program = self._table.get(name)
        return program.tokens if program is not None else 0

    def may_start(self, name: str, claim: Claim, now: float) -> bool:
        """Whether a request of the conversation may run now: it is resident then. It joins the line
        if it may not. Ask while `is_full`.
        """
        program = self._table.get(name)
        if program is None or not self.max_pause_s or claim.capacity <= 0:
            return True
        if not _pays(program, claim):
            self.left(name)
            return True
        if program.resident_since is not None:
            if not self._line or not self._is_over(program, claim.switch_s, now):
                return True
            self._leave(program)
        if program.waits_since is None:
            program.waits_since = now
            self._line[name] = program
        lack = claim.tokens + self.held_tokens - int(USABLE * claim.capacity)
        lack = min(lack, self.held_tokens)  # residents cannot give up more than they hold
        if now - program.waits_since >= self.max_pause_s:
            self._make_room(lack, now, among_all=True)
        elif self._next() is not program or (lack > 0 and not self._make_room(lack, now)):
            return False
        self.left(name)
        self._enter(program, claim.tokens, now)
        return True

    def ended(
        self,
        name: str,
        key: str,
        weight: float,
        tokens: int,
        found: int,
        capacity: int,
        asked_at: float,
        now: float,
    ) -> None:
        """A request of the conversation has ended that came at `asked_at`; its prompt and its
        answer have `tokens`, of a memory of `capacity`, where the prompt's first `found` were.
        """
        program = self._table.get(name)
        if program is None:
            program = self._table[name] = Program(name, key, weight)
            if len(self._table) > MAX_PROGRAMS:
                self._forget_oldest()
        else:
            self._table.move_to_end(name)
            program.away_s += max(0.0, asked_at - program.seen_at)
            if found < LOST * min(tokens, program.tokens):
                self._lost_at = now
        program.turns += 1
        program.seen_at = now
        since = now if program.resident_since is None else program.resident_since
        if program.resident_since is not None:
            self._leave(program)
        program.tokens = tokens
        # A resident may fill the rest too: its prefix is in memory already, and others will end.
        usable = 1.0 if since < now else USABLE
        room = int(usable * capacity) - self.held_tokens
        if program.turns > 1 and program.waits_since is None:
            lack = min(tokens - room, self.held_tokens)
            if lack <= 0 or self._make_room(lack, now):
                self._enter(program, tokens, since)
            else:
                self._lacking = tokens
        if not self._line and self.held_tokens + self._lacking <= USABLE * capacity:
            self._lacking = 0
        is_lost = now - self._lost_at < LOST_COUNTS_S
        self.is_full = bool(self._line or (self._lacking and is_lost))

    def left(self, name: str) -> None:
        """The conversation waits in line no longer."""
        program = self._line.pop(name, None)
        if program is not None:
            program.waits_since = None

    def wait_s(self, name: str, now: float) -> float:
        """How long a program in line will probably wait, at most as long as it may wait; 0 for a
        program that is not in line. Residents give up their places one after the other within a
        quantum.
        """
        program = self._line.get(name)
        if program is None or program.waits_since is None:
            return 0.0
        number = 1 + [*self._line].index(name)
        left_s = program.waits_since + self.max_pause_s - now
        share_s = self._quantum_s / max(1, len(self._residents))
        return max(0.0, min(left_s, number * share_s))

    def _is_over(self, program: Program, switch_s: float, now: float) -> bool:
        """Whether the program's quantum is over, of which it has used something: a resident may
        still wait for its worker. When many wait, all quanta are shorter, so that the last in line
        is served in `max_pause_s`.
        """
        assert program.resident_since is not None
        if program.seen_at < program.resident_since:
            return False
        most_s = self.max_pause_s * len(self._residents) / max(1, len(self._line))
        self._quantum_s = max(LEAST_QUANTUM_S, min(SWITCHES * switch_s, most_s))
        return now - program.resident_since >= self._quantum_s

    def _next(self) -> Program:
        """The program in line that becomes resident next."""
        held: dict[str, float] = {}
        for one in self._residents.values():
            held[one.key] = held.get(one.key, 0.0) + one.tokens / one.weight
        return min(
            self._line.values(), key=lambda one: (held.get(one.key, 0.0), one.waits_since or 0.0)
        )

    def _make_room(self, tokens: int, now: float, *, among_all: bool = False) -> bool:
        """Let residents give up `tokens`: those that stay away, and for a program that has waited
        for too long (`among_all`) the longest resident ones between two requests. False, with
        nothing changed, if that is not enough.
        """
        idle = [one for one in self._residents.values() if not self._has_request(one.key, one.name)]
        away = [one for one in idle if now - one.seen_at >= PATIENCE_S]
        away.sort(key=lambda one: one.seen_at)
        if among_all:
            others = [one for one in idle if one not in away]
            away += sorted(others, key=lambda one: one.resident_since or 0.0)
        chosen, freed = [], 0
        for one in away:
            if freed >= tokens:
                break
            chosen.append(one)
            freed += one.tokens
        if freed < tokens and not among_all:
            return False
        for one in chosen:
            self._leave(one)
        return freed >= tokens

    def _enter(self, program: Program, tokens: int, now: float) -> None:
        """The program is resident from now on."""
        program.resident_since = now
        program.tokens = tokens
        self._residents[program.name] = program
        self.held_tokens += tokens

    def _leave(self, program: Program) -> None:
        """The program is resident no longer."""
        program.resident_since = None
        del self._residents[program.name]
        self.held_tokens -= program.tokens

    def _forget_oldest(self) -> None:
        """Forget the program that ended a request longest ago and has none now."""
        for name, program in self._table.items():
            if not self._has_request(program.key, name):
                if program.resident_since is not None:
                    self._leave(program)
                del self._table[name]
                return


def _pays(program: Program, claim: Claim) -> bool:
    """Whether holding the program costs less than letting all compute their prefixes anew at each
    turn.

    Where N programs take turns of which n fit, a turn takes N / n times the cycle c of one that
    runs alone. Where none is held and a share m of turns misses, the workers are busy for m N
    switches s in each of everybody's turns, m N s / w on w workers. So holding pays if
    c / n < m s / w. How many would miss cannot be seen while programs are held: m is `MISSING`.
    """
    if SWITCHES * claim.switch_s < LEAST_QUANTUM_S:
        return False
    pauses_s = program.away_s + max(0.0, claim.asked_at - program.seen_at)
    cycle_s = pauses_s / max(1, program.turns) + claim.answer_s
    num_fitting = claim.capacity / max(1, claim.tokens)
    return cycle_s * claim.num_workers < MISSING * num_fitting * claim.switch_s
