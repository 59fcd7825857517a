"""Penalties over a real vocabulary and the counts behind them, beside torch a row at a time."""

from collections.abc import Iterator

import torch

from benchmarks.kernels.case import KernelCase, Variant, equal, within
from kernels.penalise import Penalties, kernel, reference

VOCAB_SIZE = 151_936
TILES = [(1024, 4), (2048, 4), (4096, 4), (4096, 8), (8192, 8)]
PROMPT = 4000
"""Tokens of a prompt, many of them repeated."""

KINDS = {"presence": (1.0, 0.0, 1.5), "repetition": (1.1, 0.3, 1.5)}
"""Repetition, frequency and presence; a repetition penalty of 1 is not computed."""


def cases(device: torch.device) -> Iterator[KernelCase]:
    """bf16 logits, all rows penalised."""
    small = device.type == "cpu"
    vocab_size = 1003 if small else VOCAB_SIZE
    for num_rows in (2,) if small else (1, 64, 256):
        for kind in KINDS:
            yield _penalise(num_rows, vocab_size, kind, device)
        yield _count(num_rows, vocab_size, device)
    yield _mark(PROMPT // 40 if small else PROMPT, vocab_size, device)


def _penalise(num_rows: int, vocab_size: int, kind: str, device: torch.device) -> KernelCase:
    amounts = KINDS[kind]
    rows = torch.arange(num_rows, device=device)
    columns = [torch.full((num_rows,), amount, device=device) for amount in amounts]
    penalties = Penalties(rows, rows, *columns)

    def make() -> tuple[torch.Tensor, ...]:
        logits = torch.randn(num_rows, vocab_size, device=device).mul_(3).bfloat16()
        counts = _counts(num_rows, vocab_size, device)
        # The form for one row at a time: counts, and whether there are any.
        outputs, seen = (counts & reference.MAX_OUTPUTS).float(), counts != 0
        return logits, counts, outputs, seen

    def by_row(
        logits: torch.Tensor, _: torch.Tensor, outputs: torch.Tensor, seen: torch.Tensor
    ) -> torch.Tensor:
        factor, frequency, presence = amounts
        adjusted = logits.float().clone()
        for row in range(num_rows):
            values = adjusted[row]
            if factor != 1.0:
                repeated = torch.where(values > 0, values / factor, values * factor)
                values = torch.where(seen[row], repeated, values)
            values = values - frequency * outputs[row]
            adjusted[row] = values - presence * (outputs[row] > 0)
        return adjusted

    def expected(logits: torch.Tensor, counts: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        out = torch.empty(logits.shape, dtype=torch.float32, device=device)
        reference.penalise(logits, counts, penalties, out)
        return out

    return KernelCase(
        name=f"{kind} {num_rows}",
        make=make,
        variants=[
            *(_variant(penalties, tile, num_warps) for tile, num_warps in TILES),
            Variant("torch, row by row", by_row, peer=True, accept=within(1e-6)),
        ],
        expected=expected,
        moved_bytes=(2 + 2 + 4) * num_rows * vocab_size,
        flops=0,
        accept=equal,
    )


def _variant(penalties: Penalties, tile: int, num_warps: int) -> Variant:
    def run(logits: torch.Tensor, counts: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        kernel.penalise(logits, counts, penalties, out, tile=tile, num_warps=num_warps)
        return out

    return Variant(f"tile={tile} warps={num_warps}", run)


def _counts(num_rows: int, vocab_size: int, device: torch.device) -> torch.Tensor:
    """Counts of prompts and of a few outputs."""
    counts = torch.zeros(num_rows, vocab_size, dtype=torch.int16, device=device)
    prompt = torch.randint(vocab_size, (num_rows, PROMPT), device=device)
    counts.scatter_(1, prompt, reference.IN_PROMPT)
    said = torch.randint(vocab_size, (num_rows, PROMPT // 4), device=device)
    return counts.scatter_add_(1, said, torch.ones_like(said, dtype=torch.int16))


def _count(num_rows: int, vocab_size: int, device: torch.device) -> KernelCase:
    rows, nothing = torch.arange(num_rows, device=device), torch.zeros(num_rows, device=device)
    one = torch.ones(1, dtype=torch.int16, device=device)
    penalties = Penalties(rows, rows, nothing, nothing, nothing)

    def make() -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(vocab_size, (num_rows,), device=device)
        return ids, _counts(num_rows, vocab_size, device)

    def run(ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        kernel.count(ids, counts, penalties)
        return counts

    def expected(ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        reference.count(ids, counts, penalties)
        return counts

    def by_row(ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        for row in range(num_rows):
            own = ids[row : row + 1]
            counts[row].index_add_(0, own, one)
            counts[row].index_fill_(0, own, 1)
        return counts

    return KernelCase(
        name=f"count {num_rows}",
        make=make,
        variants=[
            Variant("one launch", run),
            # Two tables, here the same one: the launches are timed.
            Variant("torch, row by row", by_row, peer=True, checked=False),
        ],
        expected=expected,
        moved_bytes=4 * num_rows,
        flops=0,
        accept=equal,
    )


def _mark(num_tokens: int, vocab_size: int, device: torch.device) -> KernelCase:
    def make() -> tuple[torch.Tensor, torch.Tensor]:
        entries = torch.full((num_tokens, 3), reference.IN_PROMPT, dtype=torch.int32)
        entries[:, 0] = 1
        entries[:, 1] = torch.randint(vocab_size, (num_tokens,))
        return entries.flatten().to(device), _counts(3, vocab_size, device)

    def set_up(entries: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        counts[1].zero_()
        kernel.mark(entries, counts)
        return counts

    def expected(entries: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        counts[1].zero_()
        counts[1].index_fill_(0, entries.view(-1, 3)[:, 1].long(), reference.IN_PROMPT)
        return counts

    return KernelCase(
        name=f"mark a prompt of {num_tokens}",
        make=make,
        variants=[Variant("cleared, one launch", set_up), Variant("torch", expected, peer=True)],
        expected=expected,
        moved_bytes=2 * vocab_size + 14 * num_tokens,
        flops=0,
        accept=equal,
    )
