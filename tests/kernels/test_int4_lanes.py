"""What each lane of `int4_tiles.cu` reads and multiplies, step by step in NumPy.

The addresses are the kernel's, the instructions are PTX's: `ldmatrix`, `mma.m16n8k16`, and the
copy engine's swizzle of 128 bytes.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernels.int4 import packed

Array = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

COLUMNS: Final = 256
LANES: Final = range(32)


def brought(rows: Bytes) -> Bytes:
    """Rows of 128 bytes as the copy engine lays them: chunks of 16 swizzled within eight rows."""
    out = np.empty_like(rows)
    for row in range(len(rows)):
        for chunk in range(8):
            to = chunk ^ row % 8
            out[row, 16 * to : 16 * to + 16] = rows[row, 16 * chunk : 16 * chunk + 16]
    return out.reshape(-1)


def load_tiles(memory: Bytes, addresses: list[int]) -> npt.NDArray[np.uint32]:
    """`ldmatrix.x4`: registers [lane, 4] of tiles whose rows of 16 bytes the lanes point at."""
    words = [memory[at : at + 16].view(np.uint32) for at in addresses]
    return np.array(
        [[words[8 * tile + lane // 4][lane % 4] for tile in range(4)] for lane in LANES]
    )


def halves(register: np.uint32) -> tuple[int, int]:
    return int(register) & 0xFFFF, int(register) >> 16


def value(bits: int) -> float:
    return float(np.array([bits << 16], np.uint32).view(np.float32)[0])


def multiply(a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> Array:
    """`mma.m16n8k16` of fragments [lane, 4] and [lane, 2] of bfloat16: [16, 8]."""
    left, right = np.zeros((16, 16)), np.zeros((16, 8))
    for lane in LANES:
        row, column = lane // 4, 2 * (lane % 4)
        for part, (down, along) in enumerate([(0, 0), (8, 0), (0, 8), (8, 8)]):
            for which, bits in enumerate(halves(a[lane, part])):
                left[row + down, column + along + which] = value(bits)
        for part in range(2):
            for which, bits in enumerate(halves(b[lane, part])):
                right[column + 8 * part + which, row] = value(bits)
    return left @ right


def pair_of(words: npt.NDArray[np.uint32], pair: int, zero: int) -> npt.NDArray[np.uint32]:
    """Two numbers in bfloat16 under the exponent of 128, less 128 + z."""
    bits = (words >> np.uint32(4 * pair)) & np.uint32(0x000F000F) | np.uint32(0x43004300)
    out = []
    for both in bits:
        low, high = (np.float32(value(part) - 128 - zero) for part in halves(both))
        out.append(int(low.view(np.uint32)) >> 16 | int(high.view(np.uint32)) & 0xFFFF0000)
    return np.array(out, np.uint32)


@pytest.mark.parametrize(("own_m", "block64"), [(0, 0), (1, 3)])
def test_lanes_meet_their_columns(own_m: int, block64: int) -> None:
    """One warp's part of a stage of 256 columns: 16 weight rows, 64 columns, 8 of 16 rows of x."""
    generator = torch.Generator().manual_seed(7)
    numbers = torch.randint(0, 16, (32, COLUMNS), generator=generator)
    x = torch.randint(-8, 8, (16, COLUMNS), generator=generator).float()
    memory = brought(packed(numbers, 128).numpy().view(np.uint8))
    # [columns of 64][rows][64]
    blocks = x.bfloat16().view(torch.int16).view(16, -1, 64).permute(1, 0, 2).contiguous()
    memory = np.concatenate([memory, brought(blocks.numpy().view(np.uint8).reshape(-1, 128))])
    weight_bytes, zero, n = 32 * COLUMNS // 2, 5, 1
    lane_row, lane_tile = [lane % 8 for lane in LANES], [lane // 8 for lane in LANES]
    words = load_tiles(
        memory,
        [
            (own_m * 16 + (t & 1) * 8 + r) * 128 + (((2 * block64 + (t >> 1)) ^ r) << 4)
            for r, t in zip(lane_row, lane_tile, strict=True)
        ],
    )
    found = np.zeros((16, 8))
    for half in range(2):
        rows = load_tiles(
            memory,
            [
                weight_bytes + r * 128 + (block64 * 16 + n * 8) * 128 + (((4 * half + t) ^ r) << 4)
                for r, t in zip(lane_row, lane_tile, strict=True)
            ],
        )
        low, high = words[:, 2 * half], words[:, 2 * half + 1]
        for k in range(2):
            sides = [(low, 2 * k), (high, 2 * k), (low, 2 * k + 1), (high, 2 * k + 1)]
            a = np.stack([pair_of(word, pair, zero) for word, pair in sides], axis=1)
            found += multiply(a, rows[:, 2 * k : 2 * k + 2])
    columns = slice(64 * block64, 64 * block64 + 64)
    weights = numbers[16 * own_m : 16 * own_m + 16, columns].numpy() - zero
    assert np.array_equal(found, weights @ x[8 * n : 8 * n + 8, columns].numpy().T)


def test_squares_are_a_diagonal() -> None:
    """The squares are the diagonal of the product of a fragment of x with itself: lane 4 q + q / 2
    has that of row q.
    """
    x = torch.randint(-8, 8, (8, 16), generator=torch.Generator().manual_seed(3)).float()
    bits = x.bfloat16().view(torch.int16).numpy().view(np.uint32)
    b = np.array([[bits[lane // 4, lane % 4], bits[lane // 4, 4 + lane % 4]] for lane in LANES])
    none = np.zeros(32, np.uint32)
    found = multiply(np.stack([b[:, 0], none, b[:, 1], none], axis=1), b)
    assert np.array_equal(np.diagonal(found[:8]), x.square().sum(1).numpy())
    assert not found[8:].any()


def digit_at(part: int, digit: int, lane: int) -> int:
    """Where a lane's four bytes of a digit lie (3: ones), of 128 columns."""
    quarter = lane // 8
    turned = (digit + quarter) % 4 * 32
    return (part * 4 + quarter) * 128 + turned + lane % 4 * 8 + lane // 4 % 2 * 4


def digits_of(whole: npt.NDArray[np.int64]) -> Bytes:
    """What warps make of a row of whole numbers, 2^22 added to each: four bytes a column."""
    memory, sums = np.zeros(4 * len(whole), np.uint8), whole + 2**22
    for part in range(len(whole) // 128):
        for lane in LANES:
            at = part * 128 + lane // 8 * 32 + lane // 4 % 2 * 8 + lane % 4 * 2
            for byte, column in enumerate((at, at + 16, at + 1, at + 17)):
                for digit in range(3):
                    memory[digit_at(part, digit, lane) + byte] = sums[column] >> 8 * digit & 0xFF
                memory[digit_at(part, 3, lane) + byte] = 1
    return memory


def multiply_bytes(a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """`mma.m16n8k32` of bytes without signs, [lane, 4] and [lane, 2]: [16, 8]."""
    left, right = np.zeros((16, 32), np.int64), np.zeros((32, 8), np.int64)
    for lane in LANES:
        row, column = lane // 4, 4 * (lane % 4)
        for part, (down, along) in enumerate([(0, 0), (8, 0), (0, 16), (8, 16)]):
            bytes_ = a[lane, part : part + 1].view(np.uint8)
            left[row + down, column + along : column + along + 4] = bytes_
        for part in range(2):
            bytes_ = b[lane, part : part + 1].view(np.uint8)
            right[column + 16 * part : column + 16 * part + 4, row] = bytes_
    return left @ right


@pytest.mark.parametrize(("own_k", "slices"), [(0, 1), (1, 2), (3, 4)])
def test_digits_of_a_lone_row_meet_their_columns(own_k: int, slices: int) -> None:
    """One warp's columns of a stage of 256, by 16 weight rows with a zero point of 5; the row's
    numbers are up to 2^22 steps.
    """
    generator = torch.Generator().manual_seed(5)
    numbers = torch.randint(0, 16, (16, COLUMNS), generator=generator)
    x = torch.randint(-(2**22), 2**22, (COLUMNS,), generator=generator).numpy()
    words, memory = packed(numbers, 128).numpy().view(np.uint32), digits_of(x)
    few, four, width = np.uint32(0x0F0F0F0F), np.uint32(4), COLUMNS // slices
    all_ones = np.full((32, 4), 0x01010101, np.uint32)
    counts, ones = np.zeros((16, 8), np.int64), np.zeros((16, 8), np.int64)
    for quarter in range(width // 32):
        block = own_k * (width // 32) + quarter
        low = np.array([words[lane // 4, 4 * block + lane % 4] for lane in LANES])
        high = np.array([words[8 + lane // 4, 4 * block + lane % 4] for lane in LANES])
        a = np.stack([low & few, high & few, (low >> four) & few, (high >> four) & few], axis=1)
        turns = [(lane // 4 + quarter % 4 + own_k * (width // 32)) % 4 for lane in LANES]
        at = [
            block * 128 + lane % 4 * 8 + turn * 32 for lane, turn in zip(LANES, turns, strict=True)
        ]
        b = np.array([memory[place : place + 8].view(np.uint32) for place in at])
        counts, ones = counts + multiply_bytes(a, b), ones + multiply_bytes(all_ones, b)
    found = np.zeros(16, np.int64)
    for lane_of_four, (weight, unit) in enumerate([(256, 1), (-64, 65536)]):
        left, right = 2 * lane_of_four, 2 * lane_of_four + 1
        count = counts[:, left] + weight * counts[:, right]
        found += unit * (count - 5 * (ones[:, left] + weight * ones[:, right]))
    columns = slice(own_k * width, (own_k + 1) * width)
    assert np.array_equal(found, (numbers[:, columns].numpy() - 5) @ x[columns])
    assert np.array_equal(counts[:, 4:], counts[:, :4])
