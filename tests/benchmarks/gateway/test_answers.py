"""The checks of the load generator: right answers pass over any cut, wrong ones do not."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gateway.answers import (
    AnswerCheck,
    BytesCheck,
    Dechunker,
    StreamCheck,
    WholeCheck,
    WrongAnswer,
)

WORDS = [f" w{i}" for i in range(6)]
EXPECTED = "".join(WORDS).encode()


def event(delta: dict[str, str], **fields: object) -> bytes:
    chunk = {"id": "x", "choices": [{"index": 0, "delta": delta}], **fields}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def stream(words: list[str], *, counted: int = 6, done: int = 1) -> bytes:
    events = [event({"role": "assistant", "content": ""}), *(event({"content": w}) for w in words)]
    usage = b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\n' % counted
    return b"".join([*events, event({}), usage, b"data: [DONE]\n\n" * done])


def feed(check: AnswerCheck, data: bytes, cuts: list[int]) -> int:
    """All of `data` in pieces that end at `cuts`; what was counted."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = (data[a:b] for a, b in pairwise(edges) if a < b)
    num_tokens = sum(check.feed(piece) for piece in pieces)
    check.end()
    return num_tokens


CUTS = st.lists(st.integers(0, 5000), max_size=6)


@given(CUTS)
def test_a_right_stream_passes_however_it_is_cut(cuts: list[int]) -> None:
    """Each word is counted once."""
    assert feed(StreamCheck(EXPECTED, 6), stream(WORDS), cuts) == 6


@pytest.mark.parametrize(
    "wrong",
    [
        stream(WORDS[:5]),
        stream([WORDS[1], WORDS[0], *WORDS[2:]]),
        stream([*WORDS, " more"]),
        stream([WORDS[0], *WORDS]),
        stream(WORDS, counted=5),
        stream(WORDS, done=0),
        stream(WORDS, done=2),
        stream(WORDS) + event({}),
    ],
)
def test_a_wrong_stream_does_not(wrong: bytes) -> None:
    """A word too few, twice or in the wrong place, a false count, an end too few or too many."""
    with pytest.raises(WrongAnswer):
        feed(StreamCheck(EXPECTED, 6), wrong, [])


@given(CUTS)
def test_bytes_must_be_these(cuts: list[int]) -> None:
    """However they are cut; events are counted."""
    data = stream(WORDS)
    check = BytesCheck(data)
    edges = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    for a, b in pairwise(edges):
        check.feed(data[a:b])
    check.end()
    with pytest.raises(WrongAnswer):
        check.feed(b"x")


def test_bytes_that_differ_or_lack_are_wrong() -> None:
    """Bytes that differ or lack are wrong at the byte where it happens, or at the end."""
    with pytest.raises(WrongAnswer, match="at byte 0"):
        BytesCheck(b"abc").feed(b"abd")
    short = BytesCheck(b"abc")
    short.feed(b"ab")
    with pytest.raises(WrongAnswer, match="2 of 3"):
        short.end()


def test_an_answer_in_one_piece_is_judged_at_its_end() -> None:
    """An answer in one piece is judged by its text and its count of tokens."""
    body = b'{"choices":[{"message":{"content":" w0"}}],"usage":{"completion_tokens":1}}'
    assert feed(WholeCheck(b" w0", 1), body, [20]) == 0
    for expected, count in ((b" w1", 1), (b" w0", 2)):
        with pytest.raises(WrongAnswer):
            feed(WholeCheck(expected, count), body, [])


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), CUTS)
def test_chunks_are_taken_out_of_their_coding(parts: list[bytes], cuts: list[int]) -> None:
    """Over any cut; it is over after the empty one and not before."""
    coded = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    edges = [0, *sorted(cut % len(coded) for cut in cuts), len(coded)]
    dechunker = Dechunker()
    data = b""
    for a, b in pairwise(edges):
        assert not dechunker.is_over
        data += dechunker.feed(coded[a:b])
    assert dechunker.is_over
    assert data == b"".join(parts)
