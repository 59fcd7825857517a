"""Numbers of steps in page-locked memory: each is read before its place is used again."""

import random
from functools import partial

import numpy as np
import pytest
import torch

from tests.fakes.card_streams import pretend
from workers.engine.step import host_words
from workers.engine.step.host_words import HostWords, send_words, sent_words

NEEDS_CARD = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
ON = ["cpu", pytest.param("cuda", marks=NEEDS_CARD)]


@pytest.mark.parametrize("on", ON)
def test_what_is_sent_arrives(on: str) -> None:
    """Of any length and shape; what has no room in the memory too."""
    device = torch.device(on)
    for shape in ((0,), (1,), (4, 17), (2, 3000), (70_000,)):
        values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape) - 5
        target = torch.zeros(shape, dtype=torch.int32, device=device)
        send_words(target, values)
        assert np.array_equal(target.cpu().numpy(), values)
        assert np.array_equal(sent_words(values, device).cpu().numpy(), values)


def test_a_place_is_used_again_when_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was put since the last wait for a half is never overwritten."""
    pretend(monkeypatch)
    monkeypatch.setattr(host_words, "_HALF_WORDS", 64)
    rng, memory = random.Random(1), HostWords()
    waited: list[int] = []
    for half, event in enumerate(memory._read):
        monkeypatch.setattr(event, "synchronize", partial(waited.append, half))
    unread: list[tuple[int, torch.Tensor, list[int]]] = []
    for _ in range(300):
        values = [rng.randrange(1000) for _ in range(rng.randrange(1, 20))]
        place = memory.put(np.array(values, np.int32))
        while waited:  # the card has read all of that half
            gone = waited.pop()
            unread = [one for one in unread if one[0] != gone]
        unread.append((memory._half, place, values))
        assert place.data_ptr() % 16 == memory._memory.data_ptr() % 16
        for _, kept, said in unread:
            assert kept.tolist() == said
    assert len(unread) > 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_steps_that_wait_read_what_was_sent() -> None:
    """On a card a thousand sends behind a long kernel all arrive, though the memory wraps."""
    device = torch.device("cuda")
    busy = torch.zeros(2**28, device=device)
    for _ in range(50):
        busy.add_(1)
    sent = [np.full(8000, number, np.int32) for number in range(1000)]
    found = [sent_words(values, device) for values in sent]
    for number, tensor in enumerate(found):
        assert tensor.eq(number).all()
