"""Philox4x32-10 for Triton kernels; joins what they do with the noise in one launch.

Owns the device function. `kernels.philox.reference` is the same in torch.
"""

import triton
import triton.language as tl


@triton.jit
def philox_words(group, position, key_low, key_high):
    """The four uint32 words of the counters (group, position, 0, 0).

    `group` is a block or a scalar, the others are uint32 scalars. What does not depend on the
    group (most of the first two rounds) stays scalar.
    """
    c0 = group.to(tl.uint32)
    c1 = position
    c2 = position & 0
    c3 = position & 0
    for _ in tl.static_range(10):
        product0 = c0.to(tl.uint64) * 0xD2511F53
        product2 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (product2 >> 32).to(tl.uint32) ^ c1 ^ key_low
        c2 = (product0 >> 32).to(tl.uint32) ^ c3 ^ key_high
        c1 = product2.to(tl.uint32)
        c3 = product0.to(tl.uint32)
        key_low += 0x9E3779B9
        key_high += 0xBB67AE85
    return c0, c1, c2, c3
