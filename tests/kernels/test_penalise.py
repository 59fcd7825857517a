"""Penalties on the card are those of the definition, bit for bit, and so are the counts behind."""

import pytest
import torch

from kernels.penalise import (
    IN_PROMPT,
    MAX_OUTPUTS,
    Penalties,
    count,
    kernel,
    mark,
    penalise,
    reference,
)

CPU = torch.device("cpu")
EPSILON = torch.finfo(torch.float32).eps
CALLS = pytest.mark.parametrize("call", ["entry", "kernel"])


def _penalties(rows: list[int], slots: list[int], device: torch.device) -> Penalties:
    """Each row with penalties of its own; the first has none."""
    drawn = torch.rand(3, len(rows), generator=torch.Generator().manual_seed(len(rows))) * 2
    drawn[0] += 0.2
    drawn[1:] -= 1
    drawn[:, 0] = torch.tensor([1.0, 0.0, 0.0])
    return Penalties(
        torch.tensor(rows, device=device),
        torch.tensor(slots, device=device),
        *drawn.to(device).unbind(),
    )


def _counts(num_slots: int, vocab_size: int) -> torch.Tensor:
    """Never seen, only in the prompt, a few outputs, any number of them."""
    words = torch.randint(-(2**15), 2**15, (num_slots, vocab_size), dtype=torch.int16)
    few = torch.randint(0, 4, (num_slots, vocab_size), dtype=torch.int16)
    kinds = torch.randint(0, 4, (num_slots, vocab_size))
    for kind, word in enumerate((torch.zeros_like(few), torch.full_like(few, IN_PROMPT), few)):
        words = torch.where(kinds == kind, word, words)
    return words


def _defined(
    logit: float, word: int, repetition: float, frequency: float, presence: float
) -> tuple[float, float]:
    """In plain numbers, and how much was added up: what float32 rounds is a share of that."""
    outputs = word & MAX_OUTPUTS
    if word != 0:
        logit = logit / repetition if logit > 0 else logit * repetition
    terms = (logit, -frequency * outputs, -presence * (outputs > 0))
    return sum(terms), sum(map(abs, terms))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "slots", "vocab_size", "tile"),
    [([0], [0], 1, 4096), ([4, 1, 3], [2, 0, 5], 4099, 4096), ([1, 0], [0, 3], 1000, 64)],
)
def test_logits_equal_the_reference(
    rows: list[int],
    slots: list[int],
    vocab_size: int,
    tile: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Rows in any order, in any slots, over tiles that do not fit; the raw logits stay."""
    logits = (torch.randn(5, vocab_size) * 9).to(dtype)
    counts = _counts(6, vocab_size)
    penalties = _penalties(rows, slots, CPU)
    expected = torch.empty(len(rows), vocab_size)
    penalise(logits, counts, penalties, expected)
    raw = logits.to(device)
    out = torch.empty(len(rows), vocab_size, device=device)
    there = _penalties(rows, slots, device)
    kernel.penalise(raw, counts.to(device), there, out, tile=tile)
    assert torch.equal(out.cpu(), expected)
    assert torch.equal(raw.cpu(), logits)
    assert torch.equal(expected[0], logits[rows[0]].float()), "neutral penalties change nothing"


def test_the_reference_is_the_definition() -> None:
    """Number by number."""
    logits, counts = torch.randn(3, 50) * 5, _counts(2, 50)
    penalties = _penalties([2, 0], [1, 0], CPU)
    out = torch.empty(2, 50)
    penalise(logits, counts, penalties, out)
    for index, (row, slot) in enumerate(((2, 1), (0, 0))):
        numbers = (penalties.repetition, penalties.frequency, penalties.presence)
        amounts = [float(tensor[index]) for tensor in numbers]
        defined = [
            _defined(float(logit), int(word), *amounts)
            for logit, word in zip(logits[row], counts[slot], strict=True)
        ]
        expected, sizes = torch.tensor(defined, dtype=torch.float64).T
        assert ((out[index] - expected).abs() <= 4 * EPSILON * sizes).all()


def test_what_is_not_a_number_stays_so(device: torch.device) -> None:
    """A draw tells it; what stands at -inf is never drawn, whatever the penalties."""
    logits = torch.tensor([[torch.nan, torch.inf, -torch.inf, 1.0]], device=device)
    counts = torch.full((1, 4), 3, dtype=torch.int16, device=device)
    out = torch.empty(1, 4, device=device)
    amounts = [torch.full((1,), amount, device=device) for amount in (2.0, 1.0, 1.0)]
    rows = torch.zeros(1, dtype=torch.int64, device=device)
    kernel.penalise(logits, counts, Penalties(rows, rows, *amounts), out)
    assert out[0, 0].isnan()
    assert out[0, 1:].tolist() == [torch.inf, -torch.inf, 0.5 - 4]


@CALLS
def test_each_row_counts_its_own_token(call: str, device: torch.device) -> None:
    """Each row counts its own token in its own slot. Logits that were no numbers gave no token, and
    a full count stays.
    """
    device = CPU if call == "entry" else device
    counts = torch.zeros(5, 7, dtype=torch.int16)
    counts[1, 6], counts[2, 3] = IN_PROMPT, MAX_OUTPUTS
    counts[3, 0], counts[4, 5] = IN_PROMPT + MAX_OUTPUTS, 8
    expected = counts.clone()
    expected[1, 6], expected[4, 5] = IN_PROMPT + 1, 9
    ids = torch.tensor([3, 5, 0, 2, -1, 6, 7])
    penalties = _penalties([0, 1, 2, 4, 5, 6], [2, 4, 3, 0, 1, 0], device)
    found = counts.to(device)
    (count if call == "entry" else kernel.count)(ids.to(device), found, penalties)
    assert torch.equal(found.cpu(), expected)
    assert torch.equal(expected[0], torch.zeros(7)), "neither -1 nor an id past the end counts"


def test_more_rows_than_a_page_are_counted(device: torch.device) -> None:
    """More rows than a page are counted as by the reference, again and again."""
    rows = torch.randperm(300)[:200]
    penalties = _penalties(rows.tolist(), torch.randperm(200).tolist(), CPU)
    there = _penalties(rows.tolist(), penalties.slots.tolist(), device)
    expected = _counts(200, 31)
    counts = expected.to(device)
    for _ in range(3):
        ids = torch.randint(-1, 31, (300,))
        reference.count(ids, expected, penalties)
        kernel.count(ids.to(device), counts, there)
    assert torch.equal(counts.cpu(), expected)


@CALLS
def test_words_are_set_beside_those_that_are_there(call: str, device: torch.device) -> None:
    """A prompt may name a token many times; entries outside the counts do nothing."""
    device = CPU if call == "entry" else device
    told = [(1, 4, IN_PROMPT)] * 200 + [(0, 2, 5), (1, 0, 7)]
    outside = [(-1, 0, 9), (2, 0, 9), (0, -1, 9), (0, 5, 9)]
    entries = torch.tensor([*told, *outside], dtype=torch.int32).flatten()
    counts = torch.zeros(2, 5, dtype=torch.int16)
    counts[1, 0], counts[1, 4] = IN_PROMPT, 3
    expected = counts.clone()
    expected[0, 2], expected[1, 0], expected[1, 4] = 5, IN_PROMPT + 7, IN_PROMPT + 3
    # A write behind the counts, or before them, is detected.
    room = torch.zeros(4, 5, dtype=torch.int16, device=device)
    found = room[1:3]
    found.copy_(counts)
    (mark if call == "entry" else kernel.mark)(entries.to(device), found)
    assert torch.equal(found.cpu(), expected)
    assert not room[[0, 3]].any()


def test_nothing_to_do_is_no_launch() -> None:
    """No penalised rows, no entries."""
    none = torch.empty(0)
    nobody = Penalties(none.long(), none.long(), none, none, none)
    counts = _counts(2, 5)
    before = counts.clone()
    penalise(torch.zeros(3, 5), counts, nobody, torch.empty(0, 5))
    count(torch.zeros(3, dtype=torch.int64), counts, nobody)
    mark(none.int(), counts)
    assert torch.equal(counts, before)


def test_arguments_that_do_not_fit_are_refused() -> None:
    """Arguments with other vocabularies, types or numbers of rows are errors."""
    counts, penalties = _counts(2, 5), _penalties([0], [1], CPU)
    with pytest.raises(ValueError, match="logits"):
        penalise(torch.zeros(1, 6), counts, penalties, torch.empty(1, 5))
    with pytest.raises(ValueError, match="penalised rows"):
        penalise(torch.zeros(1, 5), counts, penalties, torch.empty(2, 5))
    with pytest.raises(ValueError, match="penalised rows"):
        penalise(torch.zeros(1, 5), counts, penalties, torch.empty(1, 5).bfloat16())
    with pytest.raises(ValueError, match="int32"):
        count(torch.zeros(1, dtype=torch.int64), counts.int(), penalties)
    with pytest.raises(ValueError, match="ids"):
        count(torch.zeros(1, 1, dtype=torch.int64), counts, penalties)
    with pytest.raises(ValueError, match="words"):
        mark(torch.zeros(4, dtype=torch.int32), counts)
