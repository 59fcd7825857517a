"""Whether an engine's steps are slower than those of its good starts.

Owns the comparison of equal work: steps with as many sequences and as many blocks held. Must not
know where the reports of load come from, nor what reads the result.

A report has a moving average of step times, which prompts raise. So of `WINDOW` reports of equal
work the tenth fastest counts: it holds hardly any prompt. Twice in a row, so that a busy minute of
the host is no loss. Steps with drafts take as long as their texts allow, and are not compared.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, final

from protocol.messages import Load
from workers.starts.compare import SLOWER

WINDOW: Final = 100
"""Ten seconds of work at the least: a busy engine reports ten times a second."""
RANK: Final = 10
IN_A_ROW: Final = 2
MAX_KINDS: Final = 256
"""Kinds of work that are followed; the one that was met longest ago goes first."""
MAX_FIGURES: Final = 4


@final
class SpeedWatch:
    """`measure` has the step times in ms of good starts, by kind of work. `steps` are those that
    this start has reached; what it once reached is a measure for it too. `figures` say what is over
    10 % slower.
    """

    def __init__(self, measure: Mapping[str, float]) -> None:
        self.steps: dict[str, float] = {}
        self.figures: tuple[str, ...] = ()
        self._measure = dict(measure)
        self._reports: OrderedDict[str, list[float]] = OrderedDict()
        self._slow: dict[str, tuple[int, str]] = {}
        self._last = ("", 0)

    def add(self, load: Load) -> None:
        """One more report."""
        kind, (last_kind, last_steps) = kind_of_work(load), self._last
        self._last = kind, load.steps
        if not kind or kind != last_kind or load.steps <= last_steps:
            return
        reports = self._reports.setdefault(kind, [])
        self._reports.move_to_end(kind)
        if len(self._reports) > MAX_KINDS:
            gone, _ = self._reports.popitem(last=False)
            self._slow.pop(gone, None)
        reports.append(load.step_ms)
        if len(reports) >= WINDOW:
            self._judge(kind, sorted(reports)[RANK - 1])
            reports.clear()

    def _judge(self, kind: str, step_ms: float) -> None:
        measure_ms = min(self._measure.get(kind, step_ms), self.steps.get(kind, step_ms))
        if SLOWER * step_ms > measure_ms:
            count, words = self._slow.get(kind, (0, ""))
            if count < IN_A_ROW:  # the same words from then on: only news is said
                words = _in_words(kind, step_ms, measure_ms)
            self._slow[kind] = count + 1, words
        else:
            self._slow.pop(kind, None)
            if kind in self.steps or len(self.steps) < MAX_KINDS:
                self.steps[kind] = min(step_ms, self.steps.get(kind, step_ms))
        lasting = [words for _, (count, words) in sorted(self._slow.items()) if count >= IN_A_ROW]
        self.figures = tuple(lasting[:MAX_FIGURES])


def kind_of_work(load: Load) -> str:
    """Sequences and held blocks as `4/96`, each rounded down to one of few numbers; "" if its step
    time says nothing: no work, some that waits, or drafts.
    """
    is_drafting = load.drafting is not None and load.drafting.depth > 0
    if not load.running or load.waiting or not load.step_ms or is_drafting:
        return ""
    return f"{_rounded(load.running)}/{_rounded(load.num_blocks - load.free_blocks)}"


def _rounded(number: int) -> int:
    """Down to its three highest bits: under a fifth less from 8 on."""
    shift = max(0, number.bit_length() - 3)
    return number >> shift << shift


def _in_words(kind: str, step_ms: float, measure_ms: float) -> str:
    sequences, blocks = kind.split("/")
    return (
        f"steps of {sequences} sequences with {blocks} blocks at {step_ms:.2f} ms, "
        f"{step_ms / measure_ms - 1:.0%} slower than the {measure_ms:.2f} of the last good start"
    )
