"""Herma's sampling noise is Philox4x32-10 as published, laid out as documented."""

import pytest
import torch

from kernels.philox import cpu, philox4x32, reference, to_uniform, uniform_noise

# The known-answer vectors of the Random123 distribution (kat_vectors, philox 4x32 10).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def _words(values: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([value]) for value in values)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_the_published_vectors_come_out(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """The generator is Philox4x32-10: it answers the authors' test vectors."""
    words = philox4x32(_words(counter), _words(key))  # type: ignore[arg-type]
    assert tuple(int(word) for word in words) == expected


def test_noise_is_laid_out_by_seed_position_and_column() -> None:
    """Column i is lane i % 4 of counter (i // 4, position, 0, 0) under the 64-bit seed."""
    seed, position, num_columns = 0x2BADC0DE_1234ABCD, 70_001, 11
    noise = uniform_noise(torch.tensor([seed]), torch.tensor([position]), num_columns)
    assert noise.shape == (1, num_columns)
    for column in range(num_columns):
        words = philox4x32(
            _words((column // 4, position, 0, 0)),  # type: ignore[arg-type]
            _words((seed & 0xFFFFFFFF, seed >> 32)),  # type: ignore[arg-type]
        )
        assert noise[0, column] == to_uniform(words[column % 4])[0]


def test_a_row_is_the_same_in_any_batch() -> None:
    """Noise depends on seed and position only, never on the other rows or the row's place."""
    seeds, positions = torch.tensor([5, 6, 2**62]), torch.tensor([0, 9, 65_535])
    together = uniform_noise(seeds, positions, 101)
    for row in range(3):
        alone = uniform_noise(seeds[row : row + 1], positions[row : row + 1], 101)
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize(("rows", "num_columns"), [(0, 8), (1, 1), (3, 11), (7, 4096), (2, 20_001)])
def test_few_numbers_are_those_of_many(rows: int, num_columns: int) -> None:
    """Whichever way makes them; seeds and positions of any size and sign."""
    ends = torch.tensor([-(2**63), 2**63 - 1, -1])
    drawn = torch.randint(-(2**63), 2**63 - 1, (2, rows))
    seeds, positions = torch.cat((ends, drawn[0])), torch.cat((ends.abs(), drawn[1]))
    expected = reference.uniform_noise(seeds, positions, num_columns)
    assert torch.equal(cpu.uniform_noise(seeds, positions, num_columns), expected)
    assert torch.equal(uniform_noise(seeds, positions, num_columns), expected)


def test_uniforms_stay_inside_the_open_interval() -> None:
    """The smallest and the largest word give a number above 0 and below 1."""
    ends = to_uniform(torch.tensor([0, 0xFFFFFFFF]))
    assert ends.tolist() == [2.0**-24, 1.0 - 2.0**-24]


def test_rows_of_different_lengths_are_refused() -> None:
    """A seed without a position is an error."""
    with pytest.raises(ValueError, match="seeds"):
        uniform_noise(torch.tensor([1, 2]), torch.tensor([1]), 4)
