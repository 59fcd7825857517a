"""Which conversations keep their place when not all of them fit into the workers' memory.

Owns the conversations that work in turns, which of them are resident, and the line of those that
are not. Must not know workers, prefixes or costs: capacity and times are arguments.

An agent's conversation is a program: a request for each turn, and nearly all of its prompt is that
of the turn before. If the conversations that work at the same time need more memory than there is,
each turn evicts the prefix of another one, which is then computed again: 8 agents had a hit rate of
0.97, 16 on the same card 0.39, 32 of them 0.05 (InferenceX#2268). No order of eviction helps,
because all come back at once. So conversations take turns in another sense: the ones that fit are
resident and run for several requests, and the others wait in a line.

- A conversation is a program from its second request on; the first is never held.
- While all programs fit, nothing waits.
- A resident keeps its place for a quantum, `SWITCHES` times what it costs to compute its prefix
  again, then gives it up if others wait and it is between two requests. One that stays away for
  `PATIENCE_S` gives it up, too.
- The next in line is a program of the key that holds least for its weight, the longest waiting one
  first. Nobody waits for longer than `max_pause_s`: after that it becomes resident at once.
"""

from collections import OrderedDict
from typing import Final

import msgspec

MAX_PROGRAMS: Final = 4096
SWITCHES: Final = 40.0
"""A quantum is so many times the prefill of the whole prefix, unless `max_pause_s` is shorter. With
14 agents where 7 fit, 10 and 120 s give 2.6 times the rate of an engine's own queue and hit 81 %,
40 and 300 s 3.8 times and 92 %: more than one turn in ten waits with the former (docs/routing.md).
"""
LEAST_QUANTUM_S: Final = 5.0
PATIENCE_S: Final = 10.0
"""95 % of agents' pauses are shorter (InferenceX#2268)."""
USABLE: Final = 0.95
"""The part of the workers' memory that residents fill: their answers grow."""


class Program(msgspec.Struct, eq=False):
    """One conversation. It holds `tokens`, has sent `turns` requests of which `running` run, and
    ended the last one at `seen_at`. Exactly one of the following holds: `resident_since` is set; it
    waits in line since `waits_since`; or neither, and it has no claim.
    """

    name: str
    key: str
    weight: float
    tokens: int = 0
    turns: int = 0
    running: int = 0
    seen_at: float = 0.0
    resident_since: float | None = None
    waits_since: float | None = None


class Programs:
    """The programs of one model. With a `max_pause_s` of 0 none is ever held."""

    def __init__(self, max_pause_s: float = 0.0) -> None:
        self.max_pause_s = max_pause_s
        self.held_tokens = 0
        self._table: OrderedDict[str, Program] = OrderedDict()
        self._residents: dict[str, Program] = {}
        self._line: dict[str, Program] = {}
        self._quantum_s = LEAST_QUANTUM_S

    @property
    def num_waiting(self) -> int:
        """Programs in line."""
        return len(self._line)

    def may_start(self, name: str, tokens: int, capacity: int, switch_s: float, now: float) -> bool:
        """Whether a request of the conversation, with a prompt of `tokens`, may run now. It joins
        the line if it may not. `capacity` is in tokens; `switch_s` is what it takes to compute this
        prompt from nothing.
        """
        program = self._table.get(name)
        if program is None or not self.max_pause_s or capacity <= 0:
            return True
        if program.resident_since is not None:
            if not self._line or not self._is_over(program, switch_s, now):
                return True
            self._leave(program)
        if program.waits_since is None:
            program.waits_since = now
            self._line[name] = program
        lack = tokens + self.held_tokens - int(USABLE * capacity)
        if now - program.waits_since >= self.max_pause_s:
            self._make_room(lack, now, among_all=True)
            return True
        if self._next() is not program:
            return False
        return lack <= 0 or self._make_room(lack, now)

    def placed(self, name: str, key: str, weight: float, tokens: int, now: float) -> None:
        """A request of the conversation has its place on a worker."""
        program = self._table.get(name)
        if program is None:
            program = self._table[name] = Program(name, key, weight)
            if len(self._table) > MAX_PROGRAMS:
                self._forget_oldest()
        else:
            self._table.move_to_end(name)
        if program.waits_since is not None:
            del self._line[name]
            program.waits_since = None
        program.turns += 1
        program.running += 1
        if program.turns > 1 and program.resident_since is None:
            program.resident_since = now
            self._residents[name] = program
            self.held_tokens += program.tokens
        self._resize(program, tokens)

    def ended(self, name: str, tokens: int, now: float) -> None:
        """A request of the conversation has ended; its prompt and its answer have `tokens`."""
        program = self._table.get(name)
        if program is None:
            return
        program.running = max(0, program.running - 1)
        program.seen_at = now
        self._resize(program, tokens)

    def left(self, name: str) -> None:
        """A waiting request of the conversation has gone."""
        program = self._line.pop(name, None)
        if program is not None:
            program.waits_since = None

    def wait_s(self, name: str, now: float) -> float:
        """How long a program in line will probably wait, and no longer than it may; 0 for others.
        Residents give up their places one after the other within a quantum.
        """
        program = self._line.get(name)
        if program is None or program.waits_since is None:
            return 0.0
        number = 1 + [*self._line].index(name)
        left_s = program.waits_since + self.max_pause_s - now
        share_s = self._quantum_s / max(1, len(self._residents))
        return max(0.0, min(left_s, number * share_s))

    def _is_over(self, program: Program, switch_s: float, now: float) -> bool:
        """Whether the program's quantum is over. When many wait, all quanta are shorter, so that
        the last in line is served in `max_pause_s`.
        """
        assert program.resident_since is not None
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
        """Let residents give up `tokens`: those that stay away, and of a program that has waited
        for too long (`among_all`) the longest resident ones between two requests. False, with
        nothing changed, if that is not enough.
        """
        idle = [one for one in self._residents.values() if not one.running]
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

    def _leave(self, program: Program) -> None:
        """The program is resident no longer."""
        program.resident_since = None
        del self._residents[program.name]
        self.held_tokens -= program.tokens

    def _resize(self, program: Program, tokens: int) -> None:
        if program.resident_since is not None:
            self.held_tokens += tokens - program.tokens
        program.tokens = tokens

    def _forget_oldest(self) -> None:
        """Forget the program that was placed longest ago and neither runs nor waits."""
        for name, program in self._table.items():
            if not program.running and program.waits_since is None:
                if program.resident_since is not None:
                    self._leave(program)
                del self._table[name]
                return
