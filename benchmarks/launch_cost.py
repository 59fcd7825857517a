"""`python -m benchmarks.launch_cost`: the CPU's microseconds per call of the eager operations.

Calls come in bursts that the card's queue holds, each begun when the card is idle, so that only the
CPU's part is counted. The second column is the same with Triton's own launches: every `Launch`
leaves the launch to Triton while a hook is set. Needs a GPU.
"""

import statistics
import time
from collections.abc import Callable

import torch
from triton import knobs

from kernels.attention import PagedPlan, PrefillSpan, attend, prepared
from kernels.linear import linear_add, norm_linear
from kernels.rms_norm import rms_norm
from kernels.silu_mul import silu_mul

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 4096, 32, 8, 128
"""Of Qwen3-8B."""

PAST, NEW, BLOCK_SIZE = 8192, 32, 32
EPS = 1e-6
BURST, BURSTS = 64, 60


@torch.inference_mode()
def main() -> None:
    """Print a line per operation."""
    device = torch.device("cuda")
    print(f"{torch.cuda.get_device_name()}; us of the CPU per call, and by Triton's own launches")
    for name, launches, call in [*_products(device), *_attention(device)]:
        ours = _cost_us(call)
        knobs.runtime.launch_enter_hook.add(_nothing)
        tritons = _cost_us(call)
        knobs.runtime.launch_enter_hook.remove(_nothing)
        print(f"{name:44} {launches} launches {ours:7.1f} {tritons:7.1f}")


def _nothing(_metadata: object) -> None:
    pass


def _cost_us(call: Callable[[], object]) -> float:
    call()
    costs_us = []
    for _ in range(BURSTS):
        torch.cuda.synchronize()
        started_at = time.perf_counter()
        for _ in range(BURST):
            call()
        costs_us.append((time.perf_counter() - started_at) / BURST * 1e6)
    return statistics.median(costs_us)


Call = tuple[str, int, Callable[[], object]]


def _draw(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=torch.bfloat16)


def _products(device: torch.device) -> list[Call]:
    norm, square = _draw(device, HIDDEN), _draw(device, HIDDEN, HIDDEN)
    one, few = _draw(device, 1, HIDDEN), _draw(device, NEW, HIDDEN)
    gate_up = _draw(device, NEW, 2 * HIDDEN)
    return [
        ("norm_linear, 1 row (gemv)", 1, lambda: norm_linear(one, norm, EPS, square)),
        (f"linear_add, {NEW} rows (skinny)", 1, lambda: linear_add(few, square, few)),
        (f"rms_norm, {NEW} rows", 1, lambda: rms_norm(few, norm, EPS)),
        (f"silu_mul, {NEW} rows", 1, lambda: silu_mul(gate_up)),
    ]


def _attention(device: torch.device) -> list[Call]:
    num_blocks = (PAST + NEW) // BLOCK_SIZE + 1
    keys, values = (_draw(device, num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM) for _ in range(2))
    qkv = _draw(device, NEW, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    weights = _draw(device, HEADS + KV_HEADS, HEAD_DIM)
    angles = torch.rand(PAST + NEW, HEAD_DIM, device=device)
    tables = torch.arange(num_blocks, device=device, dtype=torch.int32)[None]
    positions = torch.arange(PAST, PAST + NEW, device=device, dtype=torch.int32)
    rows = torch.zeros_like(positions)
    spans = (PrefillSpan(0, NEW, PAST, 0),)
    prefill = PagedPlan(positions, rows, tables, 0, spans)
    decode = PagedPlan(positions[:1], rows[:1], tables, 1)

    def attention(plan: PagedPlan) -> Callable[[], object]:
        plan = prepared(plan, HEADS, keys, qkv.dtype)
        mine = qkv[: plan.positions.shape[0]]
        return lambda: attend(mine, weights, EPS, angles, keys, values, plan)

    return [
        (f"attend, 1 row behind {PAST} (decode)", 1, attention(decode)),
        (f"attend, {NEW} rows behind {PAST} (write, prefill, merge)", 3, attention(prefill)),
    ]


if __name__ == "__main__":
    main()
