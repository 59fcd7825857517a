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
    """Of the product of a fragment of x with itself: lane 4 q + q / 2 has that of row q."""
    x = torch.randint(-8, 8, (8, 16), generator=torch.Generator().manual_seed(3)).float()
    bits = x.bfloat16().view(torch.int16).numpy().view(np.uint32)
    b = np.array([[bits[lane // 4, lane % 4], bits[lane // 4, 4 + lane % 4]] for lane in LANES])
    none = np.zeros(32, np.uint32)
    found = multiply(np.stack([b[:, 0], none, b[:, 1], none], axis=1), b)
    assert np.array_equal(np.diagonal(found[:8]), x.square().sum(1).numpy())
    assert not found[8:].any()
