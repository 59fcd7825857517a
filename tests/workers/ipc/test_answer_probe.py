"""Fixed questions to an engine: what is sent, and what is read of its answers."""

import json

import pytest

from protocol.control_messages import ProbedAnswer, ProbeQuestion
from protocol.messages import (
    Finished,
    FromWorker,
    Rejected,
    Relay,
    RelayData,
    RelayEnd,
    RelayFacts,
    Submit,
    TokenItem,
    TokenLogprobs,
    Tokens,
)
from protocol.tokens import pack_tokens, unpack_tokens
from workers.ipc import AnswerProbe

ID = b"p" * 16
FACTS = RelayFacts("theirs", refused_fields=("temperature",))


def _tokens(attempt: int, *ids: int, lead: float | None = None, of: bytes = ID) -> Tokens:
    """One step; each token leads by `lead`."""
    given = tuple(
        TokenLogprobs(-0.1, ((one, -0.1), (99, -0.1 - lead))) for one in ids if lead is not None
    )
    return Tokens(1, (TokenItem(of, attempt, 0, pack_tokens(ids), given),))


def _end(attempt: int, of: bytes = ID) -> Finished:
    return Finished(of, attempt, "length", 3, 0, 6)


def test_questions_follow_one_another_and_are_timed() -> None:
    """Greedy and to the last token, so that two versions can be compared; others' ids are not ours.

    The first token's time is not that of a step.
    """
    asked = (ProbeQuestion(6, ids=(1, 2, 3)), ProbeQuestion(2, ids=(4,)))
    probe = AnswerProbe(ID, "m", asked, now=10.0)
    request = probe.request
    assert isinstance(request, Submit)
    assert list(unpack_tokens(request.prompt_ids)) == [1, 2, 3]
    assert (request.sampling.max_tokens, request.sampling.temperature) == (6, 0.0)
    assert request.sampling.ignore_eos
    assert not probe.receive(_tokens(0, 7, of=b"x" * 16), 10.5)
    assert not probe.receive(_tokens(0, 5, lead=2.0), 11.0)
    for at, token in enumerate((6, 7, 8, 9)):
        probe.receive(_tokens(0, token, lead=1.5), 11.5 + 0.5 * at)
    assert not probe.receive(_end(0, of=b"x" * 16), 13.5)
    assert probe.receive(_end(0), 14.0)
    (first,) = probe.answers
    assert (first.tokens, first.first_token_s, first.tokens_per_s) == ((5, 6, 7, 8, 9), 1.0, 2.0)
    assert first.leads == pytest.approx((2.0, 1.5, 1.5, 1.5, 1.5))
    assert isinstance(probe.request, Submit)
    assert (probe.request.attempt, probe.is_over) == (1, False)
    probe.receive(_tokens(0, 5), 15.0)  # late
    probe.receive(_tokens(1, 3, 4), 15.0)
    assert not probe.receive(_end(1), 15.0)
    assert probe.is_over
    assert probe.answers[1] == ProbedAnswer((3, 4), (), first_token_s=1.0)


@pytest.mark.parametrize(
    ("frames", "speed"),
    [
        (((12.0, 8),), 4.0),
        (((12.0, 1), (12.0, 7)), 4.0),
        (((11.0, 6), (12.0, 2)), 4.0),
        (((11.0, 2), (12.0, 6)), 6.0),
        (((10.0, 8),), 0.0),
        (((12.0, 3),), 0.0),
    ],
)
def test_frames_that_are_read_together_have_a_speed(
    frames: tuple[tuple[float, int], ...], speed: float
) -> None:
    """Frames that are read together have the speed of the whole answer, as on a busy host; a few
    tokens in no time have none.
    """
    probe = AnswerProbe(ID, "m", (ProbeQuestion(8, ids=(1, 2, 3)),), now=10.0)
    for at, num in frames:
        probe.receive(_tokens(0, *range(num)), at)
    probe.receive(_end(0), 13.0)
    assert probe.answers[0].tokens_per_s == speed


def test_an_engine_that_takes_text_is_asked_in_text() -> None:
    """An engine that takes text is asked in text, without the fields that it refuses; its answer
    may come in pieces.
    """
    probe = AnswerProbe(ID, "m", (ProbeQuestion(4, text="Hi"),), 0.0, FACTS)
    request = probe.request
    assert isinstance(request, Relay)
    body = json.loads(request.data)
    assert body == {
        "model": "theirs",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 4,
    }
    answer = {"choices": [{"message": {"content": "Hello."}}], "usage": {"completion_tokens": 8}}
    data = json.dumps(answer).encode()
    probe.receive(RelayData(b"x" * 16, 0, 0, b"?"), 1.0)
    probe.receive(RelayData(ID, 0, 0, data[:20]), 1.0)
    probe.receive(RelayData(ID, 0, 20, data[20:]), 2.0)
    assert not probe.receive(RelayEnd(ID, 0, len(data)), 2.0)
    assert probe.answers == [ProbedAnswer(text="Hello.", tokens_per_s=4.0)]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Rejected(ID, 0, "too_long", "8 tokens"), "question 1 of 1: too_long 8 tokens"),
        (Finished(ID, 0, "error", 1, 0, 0, detail="no"), "question 1 of 1: error no"),
        (RelayEnd(ID, 0, 0, "broken"), "question 1 of 1: broken"),
    ],
)
def test_a_question_that_fails_ends_the_probe(message: FromWorker, why: str) -> None:
    """A question that fails ends the probe, with the engine's words."""
    probe = AnswerProbe(ID, "m", (ProbeQuestion(4, ids=(1,), text="Hi"),), 0.0)
    assert not probe.receive(message, 1.0)
    assert (probe.is_over, probe.failure, probe.answers) == (True, why, [])


@pytest.mark.parametrize("body", [b"", b"[]", b'{"choices": []}', b'{"choices": 1}', b"oops"])
def test_an_answer_that_is_none_is_shown(body: bytes) -> None:
    """An answer that is none is shown by its first bytes."""
    probe = AnswerProbe(ID, "m", (ProbeQuestion(4, text="Hi"),), 0.0, FACTS)
    probe.receive(RelayData(ID, 0, 0, body), 1.0)
    assert not probe.receive(RelayEnd(ID, 0, len(body)), 1.0)
    assert probe.failure == f"question 1 of 1: {body.decode()}".rstrip(": ")
