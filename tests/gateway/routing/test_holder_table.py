"""The table of blocks and holders equals plain sets, whoever dies and however it is swept."""

import random
import sys

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.prefix_index import NUM_SHARDS, SHARDS_AT_ONCE, HolderTable
from protocol.ids import BlockDigest
from tests.fakes.fleet import chain

BLOCKS = chain(("p", 12))


def _sweep_all(table: HolderTable) -> None:
    """Two passes: one may have begun before the last death."""
    for _ in range(2 * NUM_SHARDS // SHARDS_AT_ONCE):
        table.sweep()


_steps = st.lists(
    st.tuples(
        st.sampled_from(["open", "close", "store", "drop", "sweep"]),
        st.integers(0, 11),
        st.sets(st.integers(0, 11)),
    ),
    max_size=40,
)


@given(_steps)
def test_the_table_equals_sets(steps: list[tuple[str, int, set[int]]]) -> None:
    """Every holder has exactly what it stored and did not drop; a bit used again has nothing."""
    table, model = HolderTable(), dict[int, set[BlockDigest]]()
    for kind, pick, picks in steps:
        digests = [BLOCKS[number] for number in sorted(picks)]
        bits = sorted(model)
        bit = bits[pick % len(bits)] if bits else 0
        if kind == "open":
            fresh = table.open()
            assert fresh not in model
            model[fresh] = set()
        elif kind == "sweep":
            table.sweep()
        elif not bits:
            continue
        elif kind == "close":
            table.close(bit)
            del model[bit]
        elif kind == "store":
            assert table.store(bit, b"".join(digests)) == len(set(digests) - model[bit])
            model[bit] |= set(digests)
        else:
            assert table.drop(bit, b"".join(digests)) == len(set(digests) & model[bit])
            model[bit] -= set(digests)
        for digest in BLOCKS:
            held_by = {b for b, held in model.items() if digest in held}
            assert table.holders(digest) == sum(held_by)
    _sweep_all(table)
    assert len(table) == len(set().union(*model.values()))


@given(
    st.lists(st.tuples(st.integers(0, 70), st.booleans()), max_size=20),
    st.integers(0, 64),
)
def test_depths_are_those_of_a_walk(held: list[tuple[int, bool]], asked: int) -> None:
    """Bisection over all holders at once finds what walking finds for each, the dead left out."""
    prompt = chain(("p", 64))
    table, expected = HolderTable(), dict[int, int]()
    for num_blocks, is_alive in held:
        bit = table.open()
        table.store(bit, b"".join(prompt[:num_blocks]))
        if not is_alive:
            table.close(bit)
        elif depth := min(num_blocks, asked, 64):
            expected[bit] = depth
    assert table.depths(prompt[:asked]) == expected


def test_bits_of_the_dead_are_used_again_once_swept() -> None:
    """Workers that come and go for months do not make the masks longer."""
    table, bits = HolderTable(), set[int]()
    for _ in range(20):
        bit = table.open()
        table.store(bit, b"".join(BLOCKS))
        table.close(bit)
        bits.add(bit)
        _sweep_all(table)
    assert len(bits) <= 2
    assert len(table) == 0


def test_churn_does_not_leave_the_table_large() -> None:
    """Blocks that come and go at a steady number end as tight as they began."""
    table, rng = HolderTable(), random.Random(1)
    bit, held = table.open(), list[bytes]()
    for _ in range(60):
        held.append(rng.randbytes(16 * 2_000))
        table.store(bit, held[-1])
        if len(held) > 20:
            table.drop(bit, held.pop(0))
    for _ in range(NUM_SHARDS):
        table.sweep()
    num_bytes = sum(sys.getsizeof(shard) - sys.getsizeof({}) for shard in table._shards)
    assert num_bytes <= 68 * len(table)
