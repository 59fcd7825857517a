"""The time of steps.

Figures beside the checks; none of them can fail.
"""

import random
import statistics
import time

from benchmarks.drive import Drive, fresh_runner
from protocol.sampling import SamplingParams
from tests.gpu_parity.scale import Scale
from workers.engine.runner import ModelRunner

_DECODE_PROMPT = 128
_WARM_STEPS = 5
_PREFILL_BUDGET = 2048


def measure(runner: ModelRunner, vocab_size: int, scale: Scale) -> dict[str, float]:
    """Whole steps of scheduler and runner, greedy. The runner reads its tokens before it returns,
    so no step is in flight when the clock is read.
    """
    figures = {
        f"ms per step, {batch} sequences": 1e3 * _decode_step_s(runner, vocab_size, scale, batch)
        for batch in (1, scale.churn_concurrency)
    }
    figures["prefill tokens per s"] = _prefill_tokens_per_s(runner, vocab_size, scale)
    return figures


def _decode_step_s(runner: ModelRunner, vocab_size: int, scale: Scale, batch: int) -> float:
    rng = random.Random(batch)
    drive = Drive(fresh_runner(runner), max_seqs=batch, token_budget=batch * _DECODE_PROMPT)
    num_outputs = scale.timed_steps + _WARM_STEPS + 2
    sampling = SamplingParams(max_tokens=num_outputs, temperature=0.0, ignore_eos=True)
    for _ in range(batch):
        drive.submit([rng.randrange(vocab_size) for _ in range(_DECODE_PROMPT)], sampling)
    for _ in range(1 + _WARM_STEPS):
        drive.step()
    times_s = []
    for _ in range(scale.timed_steps):
        started_at = time.perf_counter()
        plan = drive.step()
        times_s.append(time.perf_counter() - started_at)
        if plan is None or [chunk.length for chunk in plan.chunks] != [1] * batch:
            raise RuntimeError(f"not a decode step of {batch}: {plan}")
    return statistics.median(times_s)


def _prefill_tokens_per_s(runner: ModelRunner, vocab_size: int, scale: Scale) -> float:
    rng = random.Random(0)
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    drive = Drive(fresh_runner(runner), token_budget=_PREFILL_BUDGET)
    for timed in (False, True):
        prompt = [rng.randrange(vocab_size) for _ in range(scale.timed_prompt)]
        started_at = time.perf_counter()
        drive.submit(prompt, sampling)
        drive.finish()
        if timed:
            break
    return scale.timed_prompt / (time.perf_counter() - started_at)
