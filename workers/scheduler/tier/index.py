"""The index of the host tier, in the same region of memory as the pages that it describes.

Owns the bytes of the header and of the records, and the order in which they are written. An engine
may be killed between any two instructions: a record is sealed by a hash of itself and written only
when its page is complete, and its seal is broken before the page is written again. So a reader of
the region finds records that are true, or none. Must not know why a page is written.

    header        identity of the layout, sizes, seal
    records       one of 128 bytes for each page
    pages         keys and values of a block, or a part of a recurrent state
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, final

import xxhash

VERSION: Final = 1
"""The version of the bytes that this file writes, of the order of numbers in a page, and of what
computes them: raise it with a mend of a network or kernel that computed pages wrongly, because a
region outlives the engine that had the fault.
"""

ALIGNMENT: Final = 4096
_MAGIC: Final = b"herma-kv"
_HEADER: Final = struct.Struct("<8sI32sQQ")
_SEAL: Final = struct.Struct("<Q")
_BODY: Final = struct.Struct("<Q16s16s32sqIHHB")
_RECORD_BYTES: Final = 128
_BROKEN: Final = bytes(_SEAL.size)


class TierLayout(NamedTuple):
    """`num_pages` pages of `page_bytes` bytes. `identity` (32 bytes) is a hash of all on which the
    meaning of a page depends: the model, its dtype, its shapes, the block size.
    """

    identity: bytes
    page_bytes: int
    num_pages: int

    @property
    def pages_at(self) -> int:
        """The offset of the first page in the region."""
        return ALIGNMENT + _aligned(self.num_pages * _RECORD_BYTES)

    @property
    def num_bytes(self) -> int:
        """The size of the region."""
        return self.pages_at + self.num_pages * self.page_bytes

    @classmethod
    def within(cls, identity: bytes, page_bytes: int, num_bytes: int) -> TierLayout:
        """As many pages of at least `page_bytes` as a region of `num_bytes` holds."""
        size = _aligned(page_bytes)
        count = max(0, (num_bytes - 2 * ALIGNMENT) // (size + _RECORD_BYTES))
        return cls(identity, size, count)


class PageRecord(NamedTuple):
    """The content of one page: part `part` of `num_parts` of the entry (`kind`, `digest`).

    `parent` is the digest of the block before it (of a first block the root's), `proof` a
    cryptographic hash of all tokens up to its end, `depth` the number of blocks up to its end,
    `checksum` that of the page. `generation` counts the entries written, so parts of two writes are
    never taken for one entry.
    """

    generation: int
    digest: bytes
    parent: bytes
    proof: bytes
    checksum: int
    depth: int
    part: int
    num_parts: int
    kind: int


@final
class Index:
    """The header and the records of a region. There is one writer: the engine that has it."""

    def __init__(self, region: memoryview, layout: TierLayout) -> None:
        """Attach to a region of `layout.num_bytes` bytes. One with another layout, or with none, is
        made empty (`is_new`).
        """
        if len(region) < layout.pages_at:
            raise ValueError(f"a region of {len(region)} bytes has no room for its index")
        self._region = region
        self.layout = layout
        self.is_new = self._read_header() != layout
        if self.is_new:
            self.clear()

    def __repr__(self) -> str:
        return f"<Index of {self.layout.num_pages} pages>"

    def clear(self) -> None:
        """Forget all pages."""
        region, (identity, page_bytes, num_pages) = self._region, self.layout
        region[: _SEAL.size] = _BROKEN
        region[ALIGNMENT : self.layout.pages_at] = bytes(self.layout.pages_at - ALIGNMENT)
        body = _HEADER.pack(_MAGIC, VERSION, identity, page_bytes, num_pages)
        region[_SEAL.size : _SEAL.size + len(body)] = body
        region[: _SEAL.size] = _SEAL.pack(_seal(body))

    def publish(self, page: int, record: PageRecord) -> None:
        """Say what a page holds, which is complete."""
        at, body = self._at(page), _BODY.pack(*record)
        self._region[at : at + _SEAL.size] = _BROKEN
        self._region[at + _SEAL.size : at + _SEAL.size + len(body)] = body
        self._region[at : at + _SEAL.size] = _SEAL.pack(_seal(body))

    def retract(self, page: int) -> None:
        """Remove the record of a page, before the page is written again."""
        at = self._at(page)
        self._region[at : at + _SEAL.size] = _BROKEN

    def read(self, page: int) -> PageRecord | None:
        """What a page holds; None if nothing is known of it."""
        at = self._at(page)
        (seal,) = _SEAL.unpack_from(self._region, at)
        body = self._region[at + _SEAL.size : at + _SEAL.size + _BODY.size]
        if seal == 0 or seal != _seal(body):
            return None
        return PageRecord._make(_BODY.unpack(body))

    def records(self) -> Iterator[tuple[int, PageRecord]]:
        """The pages of which something is known. Most have no seal, and are passed over at once: a
        region of small pages has hundreds of thousands.
        """
        whole = memoryview(self._region)[ALIGNMENT : self.layout.pages_at].cast("Q")
        seals = whole[:: _RECORD_BYTES // _SEAL.size].tolist()[: self.layout.num_pages]
        for page, seal in enumerate(seals):
            if seal != 0 and (record := self.read(page)) is not None:
                yield page, record

    def _at(self, page: int) -> int:
        if not 0 <= page < self.layout.num_pages:
            raise IndexError(f"page {page} of {self.layout.num_pages}")
        return ALIGNMENT + page * _RECORD_BYTES

    def _read_header(self) -> TierLayout | None:
        (seal,) = _SEAL.unpack_from(self._region, 0)
        body = bytes(self._region[_SEAL.size : _SEAL.size + _HEADER.size])
        magic, version, identity, page_bytes, num_pages = _HEADER.unpack(body)
        if seal != _seal(body) or (magic, version) != (_MAGIC, VERSION):
            return None
        return TierLayout(identity, page_bytes, num_pages)


def _seal(body: bytes | memoryview) -> int:
    """Never 0, which means broken."""
    return xxhash.xxh3_64_intdigest(body) or 1


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
