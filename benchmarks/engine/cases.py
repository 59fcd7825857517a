"""The tests: their requests and their figures.

Owns the shapes and how a figure is computed: a step is the time of the whole call divided by its
tokens, prompt included, as a user would see it. Must not know the engine beyond its client.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from statistics import mean
from typing import Final

from benchmarks.engine.client import BenchClient, EngineAnswer, EngineRequest
from benchmarks.engine.drawing import Distinct, Drawing
from benchmarks.engine.figure import EngineFigure
from benchmarks.engine.floor import EngineFloor
from benchmarks.engine.peer import EngineBar
from benchmarks.engine.scale import Scale
from workers.scheduler import SavePolicy
from workers.scheduler.saving import positions_to_save

NEW_TOKENS: Final = 32
"""New tokens of a prompt, after its cached prefix."""

_WORKLOAD_IDS: Final = 10_000
_WARM_RUNS: Final = 1
_WARM_TOKENS: Final = 8


@dataclass
class EngineBench:
    """The common parts of the tests. `samples` collects answers for the check. `reusable` maps a
    number of cached prompt tokens to the number that the next prompt reuses: with recurrent states,
    those up to a saved state. `drawing`: the experts of timed requests are drawn, so what is
    checked is asked again without.
    """

    client: BenchClient
    scale: Scale
    floor: EngineFloor | None
    vocab_size: int
    bar: Callable[[str], EngineBar]
    reusable: Callable[[int], int]
    drawing: Drawing | None = None
    samples: list[EngineAnswer] = field(default_factory=list)
    _salts: Iterator[int] = field(default_factory=count)

    def salt(self) -> bytes:
        """A fresh salt: a prefix cache of its own, without earlier prompts."""
        return next(self._salts).to_bytes(8, "little")

    def prompts(self, name: str, num: int, length: int) -> list[list[int]]:
        """Random ids, the same in every run of the benchmark."""
        rng = random.Random(name)
        return [[rng.randrange(self.vocab_size) for _ in range(length)] for _ in range(num)]

    def at_least(self, figure: Callable[[EngineFloor], float]) -> float | None:
        """The result of `figure` for the floor, on a known card."""
        return None if self.floor is None else figure(self.floor)

    def sample(self, answers: Sequence[EngineAnswer]) -> None:
        """Keep some answers for the check."""
        answers = self._checkable(answers)
        rng = random.Random(len(self.samples))
        self.samples += rng.sample(answers, min(self.scale.checked, len(answers)))

    def sample_rows(self, answers: Sequence[EngineAnswer]) -> None:
        """Keep answers of all places in the batch, up to `Scale.checked_rows`, the first and the
        last among them: a kernel may be wrong in one row of a tile.
        """
        answers = self._checkable(answers)
        last, most = len(answers) - 1, min(self.scale.checked_rows, len(answers))
        self.samples += [answers[place * last // max(1, most - 1)] for place in range(most)]

    def _checkable(self, answers: Sequence[EngineAnswer]) -> Sequence[EngineAnswer]:
        """The answers, or if their experts were drawn other answers to the same requests."""
        if self.drawing is None:
            return answers
        salt = self.salt()
        with self.drawing.paused():
            again, _ = self.client.call([replace(answer.request, salt=salt) for answer in answers])
        return again


Case = Callable[[EngineBench], Iterator[EngineFigure]]


def decode(bench: EngineBench) -> Iterator[EngineFigure]:
    """Short prompts, greedy: milliseconds per step for each batch."""
    scale = bench.scale
    length, outputs = scale.decode_prompt, scale.decode_outputs
    for batch in scale.batches:
        prompts = bench.prompts(f"decode {batch}", batch, length)
        values, chosen = [], []
        for _ in range(_WARM_RUNS + scale.runs):
            salt = bench.salt()
            answers, seconds = bench.client.call(
                [EngineRequest(prompt, outputs, salt=salt) for prompt in prompts]
            )
            values.append(1e3 * seconds / outputs)
            chosen.append(None if bench.drawing is None else bench.drawing.distinct(batch))
        bench.sample_rows(answers)
        experts = _mean_of([each for each in chosen[_WARM_RUNS:] if each is not None])
        floor = bench.at_least(partial(_decode_floor, batch=batch, scale=scale, experts=experts))
        name = f"decode, {length} in + {outputs} out, batch {batch}"
        timed = values[_WARM_RUNS:]
        yield _figure(bench, f"decode-{batch}", name, "ms/step", timed, floor, experts)


def _mean_of(chosen: Sequence[Distinct]) -> Distinct | None:
    return Distinct(*map(mean, zip(*chosen, strict=True))) if chosen else None


def _decode_floor(floor: EngineFloor, batch: int, scale: Scale, experts: Distinct | None) -> float:
    outputs, found = scale.decode_outputs, None if experts is None else experts.found
    prompts = [scale.decode_prompt] * batch
    return 1e3 * floor.call(prompts, [outputs] * batch, experts=found) / outputs


def workload(bench: EngineBench) -> Iterator[EngineFigure]:
    """Many requests of mixed lengths at once, drawn at T = 0.6: output tokens per second."""
    low, high = bench.scale.workload_range
    rng = random.Random(0)
    ids = min(_WORKLOAD_IDS, bench.vocab_size - 1)
    num = bench.scale.workload_requests
    prompts = [[rng.randint(0, ids) for _ in range(rng.randint(low, high))] for _ in range(num)]
    outputs = [rng.randint(low, high) for _ in range(num)]
    values = []
    salt = bench.salt()
    # The same prompts in the same order of steps, with outputs of a few tokens.
    bench.client.call([EngineRequest(prompt, _WARM_TOKENS, 0.6, salt=salt) for prompt in prompts])
    for _ in range(bench.scale.workload_runs):
        salt = bench.salt()
        answers, seconds = bench.client.call(
            [
                EngineRequest(prompt, tokens, temperature=0.6, seed=seed, salt=salt)
                for seed, (prompt, tokens) in enumerate(zip(prompts, outputs, strict=True))
            ]
        )
        values.append(sum(outputs) / seconds)
    bench.sample(answers)
    lengths = [len(prompt) for prompt in prompts]
    floor = bench.at_least(lambda floor: sum(outputs) / floor.call(lengths, outputs))
    name = f"{num} requests, {low}-{high} in, {low}-{high} out, T = 0.6"
    yield _figure(bench, "workload", name, "tok/s", values, floor)


def first_token(bench: EngineBench) -> Iterator[EngineFigure]:
    """One request alone: milliseconds to its first token, with an empty and a warm cache."""
    for length in bench.scale.firsts:
        cold, cached = [], []
        (prompt,) = bench.prompts(f"first {length}", 1, length)
        tails = bench.prompts(f"tails {length}", _WARM_RUNS + bench.scale.runs, NEW_TOKENS)
        for tail in tails:
            salt = bench.salt()
            answers, _ = bench.client.call([EngineRequest(prompt, 1, salt=salt)])
            cold.append(1e3 * answers[0].first_s)
            answers, _ = bench.client.call([EngineRequest(prompt + tail, 1, salt=salt)])
            cached.append(1e3 * answers[0].first_s)
            _check_cached(answers[0], bench.reusable(length))
        if length <= min(bench.scale.firsts):
            bench.sample(answers)
        yield from _first_figures(bench, length, cold[_WARM_RUNS:], cached[_WARM_RUNS:])


def turn(bench: EngineBench) -> Iterator[EngineFigure]:
    """An agent's next turn alone: milliseconds to its first token, with a cached past."""
    for past, new in bench.scale.turns:
        (prompt,) = bench.prompts(f"turn {past}", 1, past)
        tails = bench.prompts(f"turn {past} + {new}", _WARM_RUNS + bench.scale.runs, new)
        salt = bench.salt()
        bench.client.call([EngineRequest(prompt, 1, salt=salt)])
        values = []
        for tail in tails:
            answers, _ = bench.client.call([EngineRequest(prompt + tail, 1, salt=salt)])
            values.append(1e3 * answers[0].first_s)
            _check_cached(answers[0], bench.reusable(past))
        if past <= min(bench.scale.firsts):
            bench.sample(answers)
        yield _turn_figure(bench, f"turn-{past}-{new}", past, new, values[_WARM_RUNS:])


def _turn_figure(
    bench: EngineBench, key: str, past: int, new: int, values: Sequence[float]
) -> EngineFigure:
    floor = bench.at_least(lambda floor: 1e3 * floor.prefill([new], past))
    name = f"first token, {past} tokens cached + {new} new"
    return _figure(bench, key, name, "ms", values, floor)


def reusable_tokens(length: int, saves: SavePolicy | None) -> int:
    """How many of a cached prompt's tokens the next prompt reuses. `saves` None: every whole
    block.
    """
    if saves is None:
        return length - NEW_TOKENS
    return max(positions_to_save(length, 0, 0, saves), default=0)


def _check_cached(answer: EngineAnswer, reusable: int) -> None:
    if answer.cached_tokens < reusable:
        raise RuntimeError(f"only {answer.cached_tokens} tokens were cached, not {reusable}")


def _first_figures(
    bench: EngineBench, length: int, cold: list[float], cached: list[float]
) -> Iterator[EngineFigure]:
    name = f"first token, {length} tokens cold"
    floor = bench.at_least(lambda floor: 1e3 * floor.prefill([length]))
    yield _figure(bench, f"first-{length}-cold", name, "ms", cold, floor)
    yield _turn_figure(bench, f"first-{length}-cached", length, NEW_TOKENS, cached)


def prefill(bench: EngineBench) -> Iterator[EngineFigure]:
    """Several prompts at once, one output each: prompt tokens per second."""
    num, length = bench.scale.prefill_requests, bench.scale.prefill_prompt
    prompts = bench.prompts("prefill", num, length)
    values = []
    for _ in range(_WARM_RUNS + bench.scale.runs):
        salt = bench.salt()
        answers, seconds = bench.client.call(
            [EngineRequest(prompt, 1, salt=salt) for prompt in prompts]
        )
        values.append(num * length / seconds)
    bench.sample(answers)
    floor = bench.at_least(lambda floor: num * length / floor.prefill([length] * num))
    name = f"prefill, {num} x {length}"
    yield _figure(bench, "prefill", name, "tok/s", values[_WARM_RUNS:], floor)


def long_decode(bench: EngineBench) -> Iterator[EngineFigure]:
    """Long contexts with cached prompts: milliseconds per step of the whole call."""
    scale = bench.scale
    num, length, outputs = scale.long_sequences, scale.long_prompt, scale.long_outputs
    prompts = bench.prompts("long decode", num, length)
    salt = bench.salt()
    bench.client.call([EngineRequest(prompt, 1, salt=salt) for prompt in prompts])
    values = []
    for _ in range(scale.runs):
        answers, seconds = bench.client.call(
            [EngineRequest(prompt, outputs, salt=salt) for prompt in prompts]
        )
        values.append(1e3 * seconds / outputs)
    bench.sample(answers[:1])
    sizes = [length] * num, [outputs] * num, length - 1
    floor = bench.at_least(lambda floor: 1e3 * floor.call(*sizes) / outputs)
    name = f"decode, {num} x {length} cached + {outputs} out"
    yield _figure(bench, "long-decode", name, "ms/step", values, floor)


def shared_decode(bench: EngineBench) -> Iterator[EngineFigure]:
    """Decodes with a shared prefix, and the same decodes without one: milliseconds per step of the
    whole call, with all prompts cached.
    """
    scale = bench.scale
    outputs, own = scale.long_outputs, scale.shared_own
    for num in scale.shared_batches:
        tails = bench.prompts(f"shared {num}", num, own)
        for length in (scale.shared_prompt, 0):
            (prefix,) = bench.prompts("shared", 1, length)
            prompts = [prefix + tail for tail in tails]
            salt = bench.salt()
            bench.client.call([EngineRequest(prompts[0], 1, salt=salt)])
            bench.client.call(
                [EngineRequest(prompt, _WARM_TOKENS, salt=salt) for prompt in prompts]
            )
            values = []
            for _ in range(scale.runs):
                answers, seconds = bench.client.call(
                    [EngineRequest(prompt, outputs, salt=salt) for prompt in prompts]
                )
                values.append(1e3 * seconds / outputs)
            bench.sample(answers[:1])
            floor = bench.at_least(partial(_shared_floor, num, length, own, outputs))
            name = f"decode, {num} x {own} cached + {outputs} out, behind {length} shared"
            key = f"shared-{num}-{length}"
            yield _figure(bench, key, name, "ms/step", values, floor)


def _shared_floor(num: int, shared: int, own: int, outputs: int, floor: EngineFloor) -> float:
    """The floor of a step that reads the shared prefix once."""
    tokens = shared / num + own
    return 1e3 * floor.call([round(tokens)] * num, [outputs] * num, round(tokens) - 1) / outputs


CASES: Final[dict[str, Case]] = {
    "decode": decode,
    "workload": workload,
    "first-token": first_token,
    "turn": turn,
    "prefill": prefill,
    "long-decode": long_decode,
    "shared-decode": shared_decode,
}


def _figure(
    bench: EngineBench,
    key: str,
    name: str,
    unit: str,
    values: Sequence[float],
    floor: float | None,
    experts: Distinct | None = None,
) -> EngineFigure:
    return EngineFigure(key, name, unit, tuple(values), floor, bench.bar(key), experts)
