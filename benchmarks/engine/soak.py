"""Minutes of mixed random load, to find errors, leaks and changed answers.

Owns the mix (lengths, shared prefixes, sampling, cancels, bursts) and the checks after it. Must not
measure speed. Greedy answers of the crowd are computed again alone, and both are compared with the
reference: equal tokens are expected only as far as the dtype's noise allows.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from benchmarks.engine.client import BenchClient, EngineAnswer, EngineRequest
from benchmarks.engine.engine import MeasuredEngine
from benchmarks.engine.scale import Scale

_CROWD: Final = 1.25
"""Requests as a multiple of `max_seqs`: some wait, and blocks run out now and then."""

_ABORT_SHARE: Final = 0.15
_GREEDY_KEPT: Final = 12
"""Greedy answers that are kept. Each is repeated once and checked: some 10 s of an H200 for one of
30k tokens.
"""

_MAX_GROWN_BYTES: Final = 16 * 2**20
"""Growth of the bytes in use while idle, from the second quarter on, when every graph is
captured.
"""

_MAX_RESERVED: Final = 1.02
"""The allocator's reserved bytes at the end over those in the second quarter; the largest step may
come late.
"""


@dataclass
class Soak:
    """The events of a soak. `memory` holds the device's bytes (in use, reserved) at each idle
    moment.
    """

    num_requests: int = 0
    num_aborted: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    memory: list[tuple[int, int]] = field(default_factory=list)
    kept: list[EngineAnswer] = field(default_factory=list)
    alone: list[EngineAnswer] = field(default_factory=list)
    num_different: int = 0
    wrong: list[str] = field(default_factory=list)
    load_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """All fields but the answers, for the result file."""
        known = {name: value for name, value in vars(self).items() if name not in ("kept", "alone")}
        return {**known, "load_s": round(self.load_s, 1), "greedy_again": len(self.alone)}


def soak(
    engine: MeasuredEngine,
    scale: Scale,
    seconds: float,
    seed: int,
    look: Callable[[str, Soak], None],
) -> Soak:
    """Load for `seconds` in four parts. After each all waiting requests are cancelled and the
    engine becomes idle. Then the greedy answers are repeated one at a time without a cached prefix.
    `look` gets a line and the results so far after each part.
    """
    result, rng = Soak(), random.Random(seed)
    engine.books.scheduler.expects_growth = False  # or blocks would hardly ever run out
    for part in range(4):
        began_at = time.monotonic()
        until = began_at + seconds / 4
        load = partial(_load, engine=engine, scale=scale, rng=rng, until=until, result=result)
        engine.serve(load)
        result.load_s += time.monotonic() - began_at
        _look(engine, result)
        look(_progress_line(f"soak {25 * (part + 1)} %", result), result)
    engine.serve(partial(_again, result=result))
    _look(engine, result)
    _judge(engine, result, scale.soak_needs)
    look(_progress_line("soak: answers again", result), result)
    return result


def _progress_line(what: str, result: Soak) -> str:
    """Progress for the terminal."""
    memory = f", device memory {result.memory[-1]}" if result.memory else ""
    return (
        f"{what}: {result.num_requests} requests, {result.num_aborted} cancelled, "
        f"{result.num_cached_tokens} tokens cached, {result.num_output_tokens} out, "
        f"{result.num_preemptions} preemptions{memory}, {len(result.wrong)} wrong"
    )


def _load(
    client: BenchClient,
    engine: MeasuredEngine,
    scale: Scale,
    rng: random.Random,
    until: float,
    result: Soak,
) -> None:
    live: dict[int, bool] = {}
    crowd = max(2, int(_CROWD * scale.max_seqs))
    while live or time.monotonic() < until:
        if time.monotonic() < until and len(live) < crowd:
            burst = rng.randint(1, max(1, crowd - len(live)))
            requests = [_request(rng, engine, scale) for _ in range(burst)]
            live |= dict.fromkeys(client.submit(requests), False)
            result.num_requests += burst
        client.wait(0.02)
        for number in [number for number in live if client.answers[number].ending]:
            _end(client.answers.pop(number), live.pop(number), result)
        running = [number for number, aborted in live.items() if not aborted]
        leaving: list[int] = []
        if time.monotonic() >= until:
            leaving = running
        elif running and rng.random() < _ABORT_SHARE:
            leaving = [rng.choice(running)]
        for number in leaving:
            live[number] = True
            client.abort(number)
            result.num_aborted += 1
    result.num_preemptions = engine.books.scheduler.load(0, 0.0, 0.0).preemptions


def _request(rng: random.Random, engine: MeasuredEngine, scale: Scale) -> EngineRequest:
    """A random request: lengths are spread evenly over their logarithm, mostly short, some at the
    maximum.
    """
    vocab_size = engine.books.runner.model.config.vocab_size
    length = int(scale.soak_longest ** rng.random())
    shared = random.Random(rng.randrange(scale.soak_prefixes))
    num_shared = int(length * rng.choice((0.0, 0.5, 0.9)))
    prompt = [shared.randrange(vocab_size) for _ in range(num_shared)]
    prompt += [rng.randrange(vocab_size) for _ in range(max(1, length - num_shared))]
    outputs = max(1, int(scale.soak_outputs ** rng.random()))
    temperature = rng.choice((0.0, 0.0, 0.6, 1.0))
    return EngineRequest(prompt, outputs, temperature=temperature, seed=rng.getrandbits(62))


def _end(answer: EngineAnswer, was_aborted: bool, result: Soak) -> None:
    result.num_cached_tokens += answer.cached_tokens
    result.num_output_tokens += len(answer.outputs)
    whole = answer.ending == "length" and len(answer.outputs) == answer.request.max_tokens
    if not whole and not (was_aborted and answer.ending == "abort"):
        result.wrong.append(f"{len(answer.outputs)} tokens, then {answer.ending}")
    # Early, late and in between: each greedy answer may replace an earlier one.
    if whole and answer.request.temperature == 0:
        if len(result.kept) < _GREEDY_KEPT:
            result.kept.append(answer)
        else:
            result.kept[result.num_requests % _GREEDY_KEPT] = answer


def _again(client: BenchClient, result: Soak) -> None:
    for number, answer in enumerate(result.kept):
        request, salt = answer.request, f"alone {number}".encode()
        salted = EngineRequest(request.prompt, request.max_tokens, salt=salt)
        (alone,), _ = client.call([salted])
        result.alone.append(alone)
        result.num_different += alone.outputs != answer.outputs


def _look(engine: MeasuredEngine, result: Soak) -> None:
    """Check the records and the device's memory while nothing runs."""
    engine.books.check_idle()
    device = engine.books.runner.model.weights.embedding.device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        held = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
        result.memory.append(held)


def _judge(engine: MeasuredEngine, result: Soak, needs: tuple[str, ...]) -> None:
    if result.memory:
        (used, reserved), (used_last, reserved_last) = result.memory[1], result.memory[-1]
        if used_last > used + _MAX_GROWN_BYTES or reserved_last > _MAX_RESERVED * reserved:
            result.wrong.append(f"device memory grew: {result.memory}")
    # The device frees with its next step, so the last steps may still hold memory.
    left = engine.books.runner.num_sequences
    if left > 1:
        result.wrong.append(f"the runner still keeps {left} sequences")
    for name in needs:
        if not getattr(result, name):
            result.wrong.append(f"{name} is 0: the load was not mixed")
