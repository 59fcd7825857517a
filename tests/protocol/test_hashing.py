"""The chained block hash, against an independent computation."""

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from protocol.hashing import block_digests, root_digest
from protocol.tokens import pack_tokens

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=200)
ROOTS = st.tuples(st.text(max_size=8), st.text(max_size=8), st.binary(max_size=8))


def _root_by_hand(model: str, adapter: str, salt: bytes) -> bytes:
    hasher = xxhash.xxh3_128()
    hasher.update(struct.pack("<I", 1))
    for text in (model.encode(), adapter.encode(), salt):
        hasher.update(struct.pack("<I", len(text)))
        hasher.update(text)
    return hasher.digest()


def _digests_by_hand(root: bytes, ids: list[int], block_size: int) -> list[bytes]:
    digests = [root]
    for block in range(len(ids) // block_size):
        hasher = xxhash.xxh3_128(digests[-1])
        for token_id in ids[block * block_size : (block + 1) * block_size]:
            hasher.update(struct.pack("<I", token_id))
        digests.append(hasher.digest())
    return digests[1:]


@given(ROOTS)
def test_roots_are_the_documented_hash(root: tuple[str, str, bytes]) -> None:
    """A root is xxh3_128 over the version and the length-prefixed fields."""
    assert root_digest(*root) == _root_by_hand(*root)


@given(ROOTS, IDS, st.sampled_from([1, 16, 32]))
def test_digests_are_the_documented_chain(
    root: tuple[str, str, bytes], ids: list[int], block_size: int
) -> None:
    """A digest is xxh3_128 over its predecessor and the block's ids; a partial block has none."""
    start = root_digest(*root)
    expected = _digests_by_hand(start, ids, block_size)
    assert block_digests(start, pack_tokens(ids), block_size) == expected


def test_known_vectors_never_change() -> None:
    """Digests survive on disk and between versions, so these values are frozen."""
    root = root_digest("herma-tiny")
    assert root.hex() == "9f2056b6a460924abfd202373a7e98e2"
    digests = block_digests(root, pack_tokens(range(64)), 32)
    assert [digest.hex() for digest in digests] == [
        "40cb5894c21e45a13e10165849536b41",
        "bca60c5ec73a7b5f41ea316892620b83",
    ]


@given(ROOTS, ROOTS, IDS.filter(lambda ids: len(ids) >= 4))
def test_different_roots_share_nothing(
    one: tuple[str, str, bytes], other: tuple[str, str, bytes], ids: list[int]
) -> None:
    """The same tokens under another model, adapter or salt have other digests."""
    if one == other:
        return
    packed = pack_tokens(ids)
    first = block_digests(root_digest(*one), packed, 4)
    second = block_digests(root_digest(*other), packed, 4)
    assert not {root_digest(*one), *first} & {root_digest(*other), *second}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c", b""), ("a", "bc", b"")),
        (("a", "", b"b"), ("a", "b", b"")),
        (("", "", b"a"), ("a", "", b"")),
        (("a", "", b""), ("a", "", b"\0")),
    ],
)
def test_fields_do_not_flow_into_each_other(
    one: tuple[str, str, bytes], other: tuple[str, str, bytes]
) -> None:
    """Two roots that spell the same letters in other fields differ."""
    assert root_digest(*one) != root_digest(*other)


@given(IDS, IDS, st.integers(1, 8))
def test_a_shared_prefix_shares_its_digests(
    prefix: list[int], rest: list[int], block_size: int
) -> None:
    """Blocks inside a common prefix have common digests, whatever follows."""
    root = root_digest("model")
    short = block_digests(root, pack_tokens(prefix), block_size)
    long = block_digests(root, pack_tokens(prefix + rest), block_size)
    assert long[: len(short)] == short


def test_a_digest_depends_on_all_blocks_before() -> None:
    """The same block after another history is another block."""
    block = pack_tokens(range(32))
    root = root_digest("model")
    first, second = block_digests(root, block + block, 32)
    assert first != second
