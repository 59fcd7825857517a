"""The words behind pointers of attention's kernels, by name: shares, items, merges, and what rows
share.

Owns how kernels read and write them. On the host `shares.py`, `work.py` and `runs.py` lay out the
same words. Must not know what a kernel does with them.
"""

import triton
import triton.language as tl


@triton.jit
def load_share(ptr):
    """A program's share (`SHARE_NUMBERS`): its first row, how much of that row's cost lies before
    it, where it begins, how much it takes, and the length of all shares.
    """
    row, passed = tl.load(ptr), tl.load(ptr + 1)
    place, num_left = tl.load(ptr + 2), tl.load(ptr + 3)
    return row, passed, place, num_left, tl.load(ptr + 4)


@triton.jit
def store_share(ptr, row, passed, place, num_left, share):
    """Write what `load_share` reads."""
    tl.store(ptr, row)
    tl.store(ptr + 1, passed)
    tl.store(ptr + 2, place)
    tl.store(ptr + 3, num_left)
    tl.store(ptr + 4, share)


@triton.jit
def load_item_rows(ptr, number):
    """The rows of the item of this number (`HostWork.items`): the first, how many, the position of
    the first, and the row of their table.
    """
    ptr += number * 8
    return tl.load(ptr), tl.load(ptr + 1), tl.load(ptr + 2), tl.load(ptr + 3)


@triton.jit
def load_item_keys(ptr, number):
    """The keys of the item: first key, end of the keys, and the slot of the item's first partial
    result, or -1.
    """
    ptr += number * 8
    return tl.load(ptr + 4), tl.load(ptr + 5), tl.load(ptr + 6)


@triton.jit
def store_items(ptr, numbers, row, num_rows, position, table_row, begin, end, slot, mask):
    """Write what `load_item_rows` and `load_item_keys` read, of several items."""
    ptr += numbers * 8
    tl.store(ptr, row, mask=mask)
    tl.store(ptr + 1, num_rows, mask=mask)
    tl.store(ptr + 2, position, mask=mask)
    tl.store(ptr + 3, table_row, mask=mask)
    tl.store(ptr + 4, begin, mask=mask)
    tl.store(ptr + 5, end, mask=mask)
    tl.store(ptr + 6, slot, mask=mask)
    tl.store(ptr + 7, row * 0, mask=mask)


@triton.jit
def load_merge(ptr, number):
    """The merge of this number (`HostWork.merges`): its row, first slot, number of pieces, and
    slots from piece to piece.
    """
    ptr += number * 4
    return tl.load(ptr), tl.load(ptr + 1), tl.load(ptr + 2), tl.load(ptr + 3)


@triton.jit
def load_merge_counts(ptr, numbers, mask):
    """The pieces of several merges; 0 where not `mask`."""
    return tl.load(ptr + numbers * 4 + 2, mask=mask, other=0)


@triton.jit
def store_merges(ptr, numbers, row, first, count, stride, mask):
    """Write what `load_merge` reads, of several merges."""
    ptr += numbers * 4
    tl.store(ptr, row, mask=mask)
    tl.store(ptr + 1, first, mask=mask)
    tl.store(ptr + 2, count, mask=mask)
    tl.store(ptr + 3, stride, mask=mask)


@triton.jit
def load_shared_end(ptr, mask):
    """How many cached tokens of a decode are those that it shares (`PrefillWork.shared`); 0 where
    not `mask`.
    """
    return tl.load(ptr, mask=mask, other=0)


@triton.jit
def load_shared_parts(ptr):
    """The partial results of what a decode shares: first slot, slots from part to part, parts."""
    return tl.load(ptr + 1), tl.load(ptr + 2), tl.load(ptr + 3)


@triton.jit
def load_num_shared_parts(ptr):
    """How many partial results there are of what a decode shares."""
    return tl.load(ptr + 3)
