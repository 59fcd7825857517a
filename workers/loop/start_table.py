"""The table that an engine prints at the end of its start: its sizes, and the time of each phase.

Owns its rows, their order and their words. Must not know torch, devices or its readers: facts and
numbers in, lines out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from config import SpeculationConfig
from housekeeping.sizes import bytes_text
from protocol.messages import INVARIANT, EngineFacts
from workers.scheduler import WindowSizes

_SHORT_S: Final = 0.05
"""Phases that took less are left out of the row."""


class LargestStep(NamedTuple):
    """The memory of the largest step in a probe, 0 without a probe, and what other processes took
    of the card meanwhile; None: if they took some, it is in `num_bytes`.
    """

    num_bytes: int = 0
    others_bytes: int | None = 0

    def __str__(self) -> str:
        text = f"{bytes_text(self.num_bytes)}, as measured"
        if self.others_bytes is None:
            return f"{text}, with what other processes took of the card meanwhile"
        others = f"; other processes took {bytes_text(self.others_bytes)} of the card meanwhile"
        return text + (others if self.others_bytes else "")


NO_STEP: Final = LargestStep()


class DeviceUse(NamedTuple):
    """Facts of a native engine: bytes, and the numbers of captured and of planned graphs (0 of 0 on
    a device without graphs). `prefill_bytes` of the weights are a second form. `state_bytes` are
    recurrent states. `trouble` is a fault that the start has found and tolerates. `host_bytes` of
    weights are in the host's memory, beside `weights_bytes` on the card. `window_tokens` of layers
    that keep only their `window` have room; 0 if all layers keep all tokens.
    """

    weights_bytes: int
    kv_bytes: int
    num_captured: int
    num_graphs: int
    step: LargestStep = NO_STEP
    prefill_bytes: int = 0
    state_bytes: int = 0
    trouble: str = ""
    host_bytes: int = 0
    window_tokens: int = 0
    window: int = 0

    def windows(self, block_size: int) -> WindowSizes | None:
        """The blocks of layers that keep only their window; None without such."""
        if not self.window_tokens:
            return None
        return WindowSizes(self.window_tokens // block_size, self.window)


def start_table(
    facts: EngineFacts,
    serves: str,
    max_gap_ms: float | None,
    seconds: Sequence[tuple[str, float]],
    use: DeviceUse | None,
    drafting: SpeculationConfig | None = None,
) -> list[str]:
    """Two aligned columns, a line each. `seconds` are the phases of the start, in order."""
    mode = ", invariant" if INVARIANT in facts.capabilities else ""
    rows = [("engine", f"{serves}: {facts.kind} on {facts.device}, {facts.dtype}{mode}")]
    if use is not None:
        second = use.prefill_bytes
        twice = f", {bytes_text(second)} of them for prompts" if second else ""
        far = f", {bytes_text(use.host_bytes)} more on the host" if use.host_bytes else ""
        rows.append(("weights", f"{bytes_text(use.weights_bytes)}{twice}{far}"))
    kv = f"{facts.kv_tokens:,} tokens in blocks of {facts.block_size}"
    rows.append(("keys, values", kv if use is None else f"{kv}, {bytes_text(use.kv_bytes)}"))
    if use is not None and use.window_tokens:
        room = f"{use.window_tokens:,} tokens of layers that keep only their {use.window:,}"
        rows.append(("windows", f"{room}, up to {facts.snapshots:,} prefixes"))
    elif facts.snapshots is not None:
        taken = "" if use is None else f", {bytes_text(use.state_bytes)}"
        rows.append(
            ("states", f"of {facts.max_seqs:,} sequences, {facts.snapshots:,} prefixes{taken}")
        )
    each = facts.kv_tokens // facts.max_seqs
    sequences = f"up to {facts.max_seqs:,} at once ({each:,} tokens each, if all run)"
    rows.append(("sequences", sequences))
    rows.append(("window", f"{facts.context_length:,} tokens"))
    gap = "" if max_gap_ms is None else f", gaps of about {max_gap_ms:g} ms beside prompts"
    rows.append(("budget", f"{facts.token_budget:,} tokens a step{gap}"))
    if drafting is not None:
        depth = drafting.depth
        how_many = "as many as pay" if depth == "adaptive" else f"{depth} at a time"
        rows.append(("drafts", f"by {drafting.drafter}, {how_many}"))
    if use is not None:
        rows.append(("graphs", _graphs(use)))
        if use.step.num_bytes:
            rows.append(("largest step", str(use.step)))
        if use.trouble:
            rows.append(("trouble", use.trouble))
    rows.append(("seconds", _seconds(seconds)))
    return aligned(rows)


def aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    """A line for each row, with the texts in one column."""
    width = max(len(name) for name, _ in rows)
    return [f"{name.ljust(width)}  {text}" for name, text in rows]


def _graphs(use: DeviceUse) -> str:
    if not use.num_graphs:
        return "none on this device"
    return f"{use.num_captured} of {use.num_graphs} captured, the others when idle"


def _seconds(seconds: Sequence[tuple[str, float]]) -> str:
    """The longer phases, and the sum of all."""
    parts = [f"{name} {took:.1f}" for name, took in seconds if took >= _SHORT_S]
    total = f"{sum(took for _, took in seconds):.1f} in all"
    return f"{', '.join(parts)}; {total}" if parts else total
