"""The peer's figures and our bars, as data.

Peer: vLLM 0.26.0 on one NVIDIA H200 (driver 580.159.04, torch 2.11.0+cu130, triton 3.6.0, Python
3.12.3), with its defaults (FlashAttention 3, async scheduling, CUDA graphs, prefix caching), dummy
weights, token-id prompts, no tokenizer, max_num_seqs 256, max_num_batched_tokens 16384,
max_model_len 40960, memory fraction 0.9. One run each, except the workload: the mean of two. Must
not know how ours are measured.
"""

from typing import Final, NamedTuple


class EngineBar(NamedTuple):
    """Peer, must and goal in the figure's own unit; None if there is none."""

    peer: float | None = None
    must: float | None = None
    goal: float | None = None


NO_BAR: Final = EngineBar()

_SMALL: Final = {
    "start": EngineBar(62.5),
    "workload": EngineBar(21_693, 27_000, 32_000),
    "decode-1": EngineBar(2.52, 0.80, 0.45),
    "decode-4": EngineBar(2.77),
    "decode-8": EngineBar(2.88),
    "decode-16": EngineBar(3.27),
    "decode-64": EngineBar(4.14, 2.5, 1.6),
    "decode-256": EngineBar(7.99),
    "first-2048-cold": EngineBar(21.8),
    "first-2048-cached": EngineBar(15.3),
    "first-8192-cold": EngineBar(38.6),
    "first-8192-cached": EngineBar(19.2),
    "first-32768-cold": EngineBar(280),
    "first-32768-cached": EngineBar(36.0),
    "prefill": EngineBar(289_709),
    "long-decode": EngineBar(5.08),
}
_LARGE: Final = {
    "start": EngineBar(66.8, 20, 6),
    "workload": EngineBar(9_534, 10_500, 11_600),
    "decode-1": EngineBar(5.25, 4.4, 4.0),
    "decode-4": EngineBar(5.32),
    "decode-8": EngineBar(5.67, 4.7, 4.3),
    "decode-16": EngineBar(5.62),
    "decode-64": EngineBar(7.03, 6.4, 5.7),
    "decode-256": EngineBar(14.83, 13.0, 11.3),
    "first-2048-cold": EngineBar(51.6),
    "first-2048-cached": EngineBar(12.9),
    "first-8192-cold": EngineBar(216, 208, 192),
    "first-8192-cached": EngineBar(16.6, 8, 5),
    "first-32768-cold": EngineBar(1_254, 1_200, 1_120),
    "first-32768-cached": EngineBar(29.5, 12, 7),
    "prefill": EngineBar(42_140),
    "long-decode": EngineBar(10.04, 9.5, 8.8),
}
_LARGE_FP8: Final = {
    "start": EngineBar(87.4),
    "decode-1": EngineBar(3.71, 2.7, 2.2),
    "decode-8": EngineBar(3.93),
    "decode-64": EngineBar(5.36),
    "first-2048-cold": EngineBar(34.7),
    "first-2048-cached": EngineBar(16.0),
    "first-8192-cold": EngineBar(150),
    "first-8192-cached": EngineBar(19.3),
    "first-32768-cold": EngineBar(1_004),
    "first-32768-cached": EngineBar(31.9),
    "prefill": EngineBar(63_419),
    "long-decode": EngineBar(8.38),
}
_HYBRID: Final = {
    "decode-1": EngineBar(15.68, must=14.0),
    "decode-8": EngineBar(17.35),
    "decode-64": EngineBar(24.62),
    "first-8192-cold": EngineBar(706),
    "first-8192-cached": EngineBar(82.1, must=25.0),
}
"""The peer's text model alone, with max_num_seqs 64; Triton's kernels compute its prompts of the
delta rule, because its default needs a library that was not there. Medians of three runs, of cached
prompts of eight.
"""
_HYBRID_FP8: Final = {"decode-1": EngineBar(must=7.9), "decode-64": EngineBar(must=16.5)}
"""The peer has not been run with hybrids in 8 bits."""

_BARS: Final = {
    ("qwen3-0.6b", False): _SMALL,
    ("qwen3-8b", False): _LARGE,
    ("qwen3-8b", True): _LARGE_FP8,
    ("qwen3.6-27b", False): _HYBRID,
    ("qwen3.6-27b", True): _HYBRID_FP8,
}


def bar(model: str, *, fp8: bool, key: str) -> EngineBar:
    """The bars of a figure; empty for models and tests that the peer did not run."""
    return _BARS.get((model, fp8), {}).get(key, NO_BAR)
