"""The sum over peer memory equals the sum of its parts, for every rank and bit for bit alike."""

import pytest
import torch
from torch import Tensor

from kernels.all_reduce import Mail, add_parts, kernel, mail_bytes, mail_of, reference
from kernels.all_reduce.kernel import add_parts as launch
from kernels.all_reduce.mail import SLOT_BYTES, SLOTS
from tests.fakes.bounded_interpreter import reached

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1.2e-2, torch.float16: 1e-3}
SHAPES = [(1, 8), (1, 2560), (3, 40), (64, 4096), (900, 5120)]
"""Less than a block, odd ends, a turn and several turns of a slot."""

FEW = 48
"""Programs of a rank. Both run on one card here, where a rank's programs that wait must leave room
for the other's.
"""


def _memory(ranks: int, device: torch.device) -> Tensor:
    """Each rank's memory; only flags and counts have to be zero, so the mail is poisoned."""
    made = torch.zeros(ranks, mail_bytes(ranks), dtype=torch.uint8, device=device)
    made[:, : ranks * SLOTS * 2 * SLOT_BYTES] = 0xFF  # NaN in every dtype
    return made


def _mails(memory: Tensor) -> list[Mail]:
    addresses = [each.data_ptr() for each in memory]
    return [mail_of(own, addresses, rank) for rank, own in enumerate(memory)]


def _parts(shape: tuple[int, ...], dtype: torch.dtype, count: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(count)]


def _assert_near(out: Tensor, expected: Tensor) -> None:
    error = (out.cpu().double() - expected.double()).norm() / expected.double().norm()
    assert error < TOLERANCE[out.dtype]


def _as_if_sent(part: Tensor, memory: Tensor, source: int, turn: int, pushed: int) -> None:
    """Lay a part into a memory as rank `source` does it in the given turn of every slot."""
    ranks = mail_ranks(memory)
    size = part.element_size()
    mail = memory[: ranks * SLOTS * 2 * SLOT_BYTES].view(part.dtype)
    mail = mail.view(ranks, SLOTS, 2, SLOT_BYTES // size)
    flags = memory[ranks * SLOTS * 2 * SLOT_BYTES :].view(torch.int32).view(ranks, SLOTS)
    for block, piece in enumerate(part.flatten().split(pushed // size)):
        mail[source, block, turn % 2, : piece.numel()] = piece
        flags[source, block] += 1


def mail_ranks(memory: Tensor) -> int:
    """How many ranks this memory has room for."""
    return memory.numel() // mail_bytes(1)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_adds_what_the_others_have_sent(
    dtype: torch.dtype, ranks: int, device: torch.device
) -> None:
    """Three turns of each rank; the others' parts lie there already, and its own arrive."""
    for rank in range(ranks):
        memory = _memory(ranks, device)
        mail = _mails(memory)[rank]
        for turn in range(3):
            *parts, residual = _parts((3, 840), dtype, ranks + 1, seed=turn)
            for source in range(ranks):
                if source != rank:
                    _send(parts[source].to(device), memory[rank], source, turn)
            given = residual if turn else None
            with reached(memory):
                out = launch(parts[rank].to(device), _on(device, given), mail)
            _assert_near(out, reference.add_parts(parts, given))
            for other in range(ranks):
                if other != rank:
                    _assert_sent(parts[rank], memory[other], rank, turn)


def test_a_slot_takes_turns_within_a_launch(device: torch.device) -> None:
    """The two halves of a slot are read and written in turn within a launch."""
    memory = _memory(2, device)
    mail = _mails(memory)[0]
    own, other = _parts((2, 512), torch.float32, 2)
    parts, flags = _views(memory[0], torch.float32)
    parts[1, 0, :, :512] = other.to(device)
    flags[1, 0] = 2
    with reached(memory):
        out = launch(own.to(device), None, mail, most_programs=1)
    _assert_near(out, reference.add_parts([own, other], None))
    parts, flags = _views(memory[1], torch.float32)
    assert torch.equal(parts[0, 0, :, :512].cpu(), own)
    assert flags[0].tolist() == [2] + [0] * (SLOTS - 1)
    assert mail.counts.tolist() == [2] + [0] * (SLOTS - 1)


def _send(part: Tensor, memory: Tensor, source: int, turn: int) -> None:
    """Lay a part into a memory, as rank `source` does it in this turn of every slot."""
    parts, flags = _views(memory, part.dtype)
    for slot, piece in enumerate(_pieces(part)):
        parts[source, slot, turn % 2, : piece.numel()] = piece
        flags[source, slot] += 1


def _assert_sent(part: Tensor, memory: Tensor, source: int, turn: int) -> None:
    """A memory has this part, what was there before, and flags of its sender alone."""
    parts, flags = _views(memory, part.dtype)
    pieces = _pieces(part)
    for slot, piece in enumerate(pieces):
        assert torch.equal(parts[source, slot, turn % 2, : piece.numel()].cpu(), piece)
        assert parts[source, slot, turn % 2, piece.numel() :].isnan().all()
    assert flags[source].tolist() == [turn + 1] * len(pieces) + [0] * (SLOTS - len(pieces))
    assert parts[source, len(pieces) :].isnan().all()
    assert parts[torch.arange(len(parts)) != source].isnan().all()
    assert not flags[torch.arange(len(flags)) != source].any()


def _views(memory: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Parts [ranks, SLOTS, 2, numbers] and flags [ranks, SLOTS] of one rank's memory."""
    ranks = memory.numel() // mail_bytes(1)
    end = ranks * SLOTS * 2 * SLOT_BYTES
    parts = memory[:end].view(dtype).view(ranks, SLOTS, 2, -1)
    return parts, memory[end:].view(torch.int32).view(ranks, SLOTS)


def _pieces(part: Tensor) -> tuple[Tensor, ...]:
    """What each slot sends of a part that all of them take at once."""
    return part.flatten().split(2048 // part.element_size())


def _on(device: torch.device, tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.to(device)


def test_a_trial_ends_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that no other rank answers returns after its polls, with a wrong sum."""
    monkeypatch.setitem(kernel._MOST_POLLS, True, 4)
    kernel._launch_of.cache_clear()
    memory = _memory(2, torch.device("cpu"))
    part = torch.ones(8)
    with reached(memory):
        out = launch(part, None, _mails(memory)[0], is_trial=True)
    kernel._launch_of.cache_clear()
    assert out.isnan().all()


def test_a_part_that_is_no_whole_number_of_grains_is_refused() -> None:
    memory = _memory(2, torch.device("cpu"))
    mail = _mails(memory)[0]
    with pytest.raises(ValueError, match="part"):
        add_parts(torch.zeros(3), None, mail)
    with pytest.raises(ValueError, match="residual"):
        add_parts(torch.zeros(4), torch.zeros(8), mail)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_on_two_streams_of_a_card_get_the_same_bits(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    """Two ranks on two streams of a card replay their graphs at the same time, without events
    between the streams, and get the same bits.
    """
    device = torch.device("cuda")
    memory = _memory(2, device)
    mails = _mails(memory)
    *parts, residual = [part.to(device) for part in _parts(shape, dtype, 3)]
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    # These launches load the kernels while no rank spins: a load may wait for running kernels.
    sent = _memory(2, device)
    for own in sent:
        _views(own, dtype)[1].fill_(1)
    for part, mail in zip(parts, _mails(sent), strict=True):
        launch(part, residual, mail, most_programs=FEW)
    torch.cuda.synchronize()
    graphs, outs = [], []
    for part, mail, stream in zip(parts, mails, streams, strict=True):
        graphs.append(graph := torch.cuda.CUDAGraph())
        with torch.cuda.graph(graph, stream=stream):
            made = [launch(part, residual, mail, most_programs=FEW) for _ in range(3)]
            outs.append(made)
    for seed in range(1, 6):
        for part, drawn in zip(parts, _parts(shape, dtype, 2, seed), strict=True):
            part.copy_(drawn)
        for out in (each for made in outs for each in made):
            out.fill_(float("nan"))
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        expected = reference.add_parts([part.cpu() for part in parts], residual.cpu())
        for first, second in zip(*outs, strict=True):
            assert torch.equal(first, second)
            _assert_near(first, expected)
