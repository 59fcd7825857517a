"""The sizes of the tests.

Owns one set for a card, with which the peer was measured too, and one that a CPU computes in
seconds, to test the benchmark itself. Lengths are in tokens.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Scale:
    """One set of sizes. Each test has `runs`, whose median counts; the longest has `workload_runs`.
    The outputs of `checked` requests of each kind, and of `checked_rows` of a batch of decodes, are
    compared with the reference, which takes 0.6 s for each of a 27B on an H200, and the memory that
    `kv_tokens` leave. `turns` are cached and new tokens. `soak_kv_tokens` are too few
    for `max_seqs` sequences of the soak, so that some are preempted; `soak_needs` names the events
    that a valid soak must contain. A request with a new grammar joins `grammar_beside` others.
    """

    max_seqs: int
    token_budget: int
    context_length: int
    batches: tuple[int, ...]
    decode_prompt: int
    decode_outputs: int
    workload_requests: int
    workload_range: tuple[int, int]
    firsts: tuple[int, ...]
    turns: tuple[tuple[int, int], ...]
    prefill_requests: int
    prefill_prompt: int
    long_sequences: int
    long_prompt: int
    long_outputs: int
    shared_batches: tuple[int, ...]
    shared_prompt: int
    shared_own: int
    runs: int
    workload_runs: int
    checked: int
    checked_rows: int
    kv_tokens: int | None
    soak_longest: int
    soak_outputs: int
    soak_prefixes: int
    soak_kv_tokens: int
    soak_needs: tuple[str, ...]
    grammar_batches: tuple[int, ...]
    grammar_outputs: int
    grammar_beside: int


CARD: Final = Scale(
    max_seqs=256,
    token_budget=16_384,
    context_length=40_960,
    batches=(1, 4, 8, 16, 64, 256),
    decode_prompt=128,
    decode_outputs=256,
    workload_requests=256,
    workload_range=(100, 1024),
    firsts=(2_048, 8_192, 32_768),
    turns=((2_048, 300), (8_192, 300), (8_192, 1_000), (32_768, 1_000), (32_768, 4_000)),
    prefill_requests=16,
    prefill_prompt=2_048,
    long_sequences=8,
    long_prompt=16_384,
    long_outputs=128,
    shared_batches=(8, 32, 64),
    shared_prompt=12_288,
    shared_own=1_024,
    runs=3,
    workload_runs=1,
    checked=2,
    checked_rows=8,
    kv_tokens=320_000,
    soak_longest=30_000,
    soak_outputs=2_048,
    soak_prefixes=12,
    soak_kv_tokens=64_000,
    soak_needs=("num_aborted", "num_cached_tokens", "num_preemptions", "kept"),
    grammar_batches=(1, 64),
    grammar_outputs=128,
    grammar_beside=32,
)

SMOKE: Final = Scale(
    max_seqs=4,
    token_budget=64,
    context_length=512,
    batches=(1, 4),
    decode_prompt=8,
    decode_outputs=8,
    workload_requests=4,
    workload_range=(5, 12),
    firsts=(96,),
    turns=((96, 20),),
    prefill_requests=2,
    prefill_prompt=40,
    long_sequences=2,
    long_prompt=100,
    long_outputs=4,
    shared_batches=(3,),
    shared_prompt=96,
    shared_own=20,
    runs=2,
    workload_runs=1,
    checked=1,
    checked_rows=8,
    kv_tokens=None,
    soak_longest=150,
    soak_outputs=100,
    soak_prefixes=2,
    soak_kv_tokens=256,
    soak_needs=("num_aborted",),
    grammar_batches=(2,),
    grammar_outputs=8,
    grammar_beside=2,
)
