"""The phase of a start, read from the log lines of external engines.

Owns the patterns of lines that name a phase. Any other line only shows that the engine is alive.
Must not know processes or clocks.
"""

from __future__ import annotations

import re
from typing import Final

_PERCENT: Final = re.compile(r"(\d{1,3})\s?%")
_OF: Final = re.compile(r"\b(\d+)/(\d+)\b")

_PHASES: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), phase)
    for pattern, phase in (
        # vLLM: tqdm bars and lines of its loader, compiler and model runner.
        (r"download(ing|ed) .*(shard|safetensors|weights|model)|fetching \d+ files", "download"),
        (r"loading .*checkpoint shards|starting to load model|load weight begin", "weights"),
        (r"loading weights took|model loading took|load weight end", "weights"),
        (r"torch\.compile|compiling a graph|dynamo bytecode|deep_?gemm.*warmup", "compile"),
        (r"KV cache (size|memory|is allocated)|memory pool end", "memory"),
        (r"captur(e|ing) (cuda )?(graph|batches)", "warm-up"),
        (r"graph capturing finished|capture cuda graph end|init engine .* took", "warm-up"),
        # llama-server.
        (r"llama_model_loader|load_tensors|load_model: loading model", "weights"),
        (r"llama_kv_cache|llama_context: ", "memory"),
        (r"warming up the model", "warm-up"),
        # All of them log at the end that their server listens.
        (
            r"application startup complete|server is fired up|is listening|listening on http",
            "server",
        ),
    )
)


def phase_of(line: str) -> tuple[str, float] | None:
    """The phase that a log line names, and the completed fraction of it (0 if the line has none);
    None for a line that names no phase.
    """
    phase = next((phase for pattern, phase in _PHASES if pattern.search(line)), None)
    return None if phase is None else (phase, _fraction(line))


def _fraction(line: str) -> float:
    if (percent := _PERCENT.search(line)) is not None:
        return min(int(percent[1]), 100) / 100
    if (part := _OF.search(line)) is not None and int(part[2]) > 0:
        return min(int(part[1]) / int(part[2]), 1.0)
    return 0.0
