"""Generated fan-outs are what their description says."""

from collections import defaultdict

from benchmarks.routing.fanouts import fanout_trace
from benchmarks.routing.fleet import BLOCK
from benchmarks.routing.trace import TracedTurn

TRACE = fanout_trace("shared", 40, 1)


def questions() -> dict[int, list[TracedTurn]]:
    """The turns that follow each task at once, by its number."""
    tasks = {turn.number for turn in TRACE.turns if not turn.after}
    found: dict[int, list[TracedTurn]] = defaultdict(list)
    for turn in TRACE.turns:
        if turn.after and turn.after[0] in tasks:
            found[turn.after[0]].append(turn)
    return found


def test_questions_arrive_together_about_one_document() -> None:
    """The questions of a task share the blocks of its document and nothing else; no other task has
    these blocks.
    """
    seen: set[bytes] = set()
    assert len(questions()) == 40
    for asked in questions().values():
        assert 2 <= len(asked) <= 16
        assert all(turn.pause_s <= 0.5 for turn in asked)
        shared = set.intersection(*(set(turn.digests) for turn in asked))
        assert not shared & seen
        seen |= shared
        own = [set(turn.digests) - shared for turn in asked]
        assert sum(map(len, own)) == len(set.union(*own))
        assert len({turn.session for turn in asked}) == len(asked)
        shortest = min(turn.prompt_tokens for turn in asked)
        assert 4_000 // BLOCK <= len(shared) <= shortest // BLOCK


def test_some_conversations_go_on() -> None:
    """A third of them, with all blocks that they had."""
    turns = {turn.number: turn for turn in TRACE.turns}
    asked = [turn for several in questions().values() for turn in several]
    later = [turn for turn in TRACE.turns if turn.after and turn not in asked]
    assert len(asked) / 5 < len(later) < len(asked) / 2
    for turn in later:
        before = turns[turn.after[0]].digests
        assert turn.digests[: len(before)] == before


def test_equal_seeds_make_equal_traces() -> None:
    assert fanout_trace("shared", 40, 1) == TRACE
    assert fanout_trace("shared", 40, 2) != TRACE
