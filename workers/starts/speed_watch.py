"""Detects that an engine's steps are slower than those of its good starts.

Owns the comparison of equal work: steps with equally many sequences and held blocks. Must not know
where the reports of load come from, nor the readers of the result.

A report has a moving average of step times, which prompts raise. So of `WINDOW` reports of equal
work the tenth fastest counts: it contains hardly any prompt. A loss counts when it shows twice in a
row, so that a busy minute of the host does not. Steps with drafts are not compared, because their
time depends on the texts.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, final

from protocol.messages import Load
from workers.starts.compare import SLOWER

WINDOW: Final = 100
"""At least ten seconds of work: a busy engine reports ten times a second."""
RANK: Final = 10
IN_A_ROW: Final = 2
MAX_KINDS: Final = 256
"""Kinds of work that are followed; the least recently seen one is dropped first."""
MAX_FIGURES: Final = 4


@final
class SpeedWatch:
    """Compares one start with good ones. `measure` has the step times in ms of good starts, by kind
    of work. `steps` are the times that this start has reached, which then are a measure for it too.
    `figures` name what is over 10 % slower.
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
            if count < IN_A_ROW:  # after a warning its words stay the same
                words = _in_words(kind, step_ms, measure_ms)
            self._slow[kind] = count + 1, words
        else:
            self._slow.pop(kind, None)
            if kind in self.steps or len(self.steps) < MAX_KINDS:
                self.steps[kind] = min(step_ms, self.steps.get(kind, step_ms))
        lasting = [words for _, (count, words) in sorted(self._slow.items()) if count >= IN_A_ROW]
        self.figures = tuple(lasting[:MAX_FIGURES])


def kind_of_work(load: Load) -> str:
    """Sequences and held blocks as `4/96`, each rounded down to one of few numbers; "" if the step
    time means nothing: no work, waiting work, or drafts.
    """
    is_drafting = load.drafting is not None and load.drafting.depth > 0
    if not load.running or load.waiting or not load.step_ms or is_drafting:
        return ""
    return f"{_rounded(load.running)}/{_rounded(load.num_blocks - load.free_blocks)}"


def _rounded(number: int) -> int:
    """The number rounded down to its three highest bits: less than a fifth lower from 8 on."""
    shift = max(0, number.bit_length() - 3)
    return number >> shift << shift


def _in_words(kind: str, step_ms: float, measure_ms: float) -> str:
    sequences, blocks = kind.split("/")
    return (
        f"steps of {sequences} sequences with {blocks} blocks at {step_ms:.2f} ms, "
        f"{step_ms / measure_ms - 1:.0%} slower than the {measure_ms:.2f} of the last good start"
    )
