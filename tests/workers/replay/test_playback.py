"""One sequence's way through its answer, over any cut into attempts and chunks."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from workers.replay.script import Rule
from workers.replay.scripted import Playback, ScriptedOutput

END = 99


def play(
    playback: Playback, until: float = float("inf"), most: int = 50
) -> list[tuple[float, ScriptedOutput]]:
    """The tokens and their times, until the runner is silent for ever."""
    lines = []
    while playback.due_at <= until and len(lines) < most and playback.due_at != float("inf"):
        at = playback.due_at
        line = playback.next_output()
        lines.append((at, line))
        if line.die or line.error or END in line.ids:
            break
    return lines


def playback(rule: Rule, length: int = 5, said: int = 0, *, may_die: bool = True) -> Playback:
    return Playback(
        rule, array("I", range(length)), END, num_outputs=said, now=10.0, may_die=may_die
    )


def test_it_waits_then_speaks_in_chunks_at_its_pace_and_ends() -> None:
    """`wait_s`, then `chunk_tokens` at a time, `token_ms` for each."""
    rule = Rule(answer="-", wait_s=2.0, chunk_tokens=2, token_ms=1000.0)
    lines = [(at, line.ids) for at, line in play(playback(rule))]
    assert lines == [(12.0, (0, 1)), (14.0, (2, 3)), (16.0, (4,)), (17.0, (END,))]


def test_other_ends() -> None:
    """The other ends of an answer: again from the beginning, an error, or silence."""
    again = play(playback(Rule(answer="-", finish="length", chunk_tokens=4)), most=3)
    assert [line.ids for _, line in again] == [(0, 1, 2, 3), (4, 0, 1, 2), (3, 4, 0, 1)]
    *_, (_, last) = play(playback(Rule(answer="-", name="r", finish="error")))
    assert last.error == "the script's rule 'r' ends with an error"
    silent = playback(Rule(answer="-", finish="hang"))
    assert play(silent)[-1][1] == ScriptedOutput()
    assert silent.due_at == float("inf")


def test_death_comes_after_exactly_so_many_tokens_and_not_twice() -> None:
    """Chunks are cut there; a sequence that is past it, or a later start, goes on."""
    rule = Rule(answer="-", chunk_tokens=4, die="kill", die_after_tokens=3)
    assert [line for _, line in play(playback(rule))] == [
        ScriptedOutput((0, 1, 2)),
        ScriptedOutput(die="kill"),
    ]
    whole = [line for _, line in play(playback(rule, may_die=False))]
    assert whole == [ScriptedOutput((0, 1, 2, 3)), ScriptedOutput((4,)), ScriptedOutput((END,))]
    assert play(playback(rule, said=3)) == [
        (10.0, ScriptedOutput((3, 4))),
        (10.0, ScriptedOutput((END,))),
    ]
    at_once = Rule(answer="-", die="exit")
    assert play(playback(at_once)) == [(10.0, ScriptedOutput(die="exit"))]


@given(
    length=st.integers(1, 20),
    chunk=st.integers(1, 7),
    cuts=st.lists(st.integers(0, 25), max_size=4),
    finish=st.sampled_from(["stop", "length"]),
)
def test_attempts_continue_each_other(
    length: int, chunk: int, cuts: list[int], finish: str
) -> None:
    """However often the sequence is resumed, the tokens are those of the undisturbed one."""
    rule = Rule(answer="-", chunk_tokens=chunk, finish=finish)

    def tokens(said: int, most: int) -> list[int]:
        ids = [i for _, line in play(playback(rule, length, said)) for i in line.ids]
        return ids[:most]

    whole = tokens(0, 30)
    told: list[int] = []
    for cut in sorted(cuts):
        if END in told:
            return
        told += tokens(len(told), max(0, cut - len(told)))
        assert told == whole[: len(told)]
