"""An engine without a model: hashed tokens at an exact pace, for load tests.

Owns the answers of `engine = "synthetic"` and their pace: an output token is a hash of the seed and
of its place in the answer, so a resumed sequence continues as the undisturbed one, and a reader
that knows the seed can say what every token must be. It reads the model's text files and never its
weights. Must not import torch.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

import xxhash

from config import WorkerConfig
from protocol.errors import ConfigError
from protocol.sampling import SamplingParams
from workers.model_dir import TOKENIZER_NAME, engine_model_dir, read_eos_ids, read_json
from workers.replay.runner import ReplayRunner, sampled
from workers.scheduler import Chunk, Sampled, StepPlan, StepResult

_PLACE: Final = struct.Struct("<QQ")
_SPACE: Final = "Ġ"
"""How byte-level vocabularies write the space that begins a word."""
_ENOUGH_WORDS: Final = 64


@final
class SyntheticRunner(ReplayRunner):
    """Every step takes `step_ms`. One sequence costs a few counters."""

    def __init__(self, config: WorkerConfig, model_dir: Path) -> None:
        super().__init__(config, model_dir)
        self._vocabulary = read_vocabulary(model_dir)
        self._pace = Pace(config.step_ms / 1e3)
        self._sequences: dict[int, tuple[int, int, SamplingParams]] = {}

    def collect(self, plan: StepPlan) -> StepResult:
        """Tokens for all sampling chunks of `plan`, when its step is over."""
        due_at = self._pace.next_due(time.monotonic())
        for seq in plan.ended:
            self._sequences.pop(seq, None)
        for start in plan.started:
            self._sequences[start.seq] = (start.seed, start.num_prompt, start.sampling)
        answers = tuple(self._sample(chunk) for chunk in plan.chunks if chunk.samples)
        if (rest_s := due_at - time.monotonic()) > 0:
            time.sleep(rest_s)
        return StepResult(plan.step, answers)

    def _sample(self, chunk: Chunk) -> Sampled:
        seed, num_prompt, sampling = self._sequences[chunk.seq]
        token_id = self._vocabulary.at(seed, chunk.start + chunk.length - num_prompt)
        return sampled(chunk.seq, (token_id,), sampling)


def load_synthetic(
    config: WorkerConfig, report: Callable[[str, float, str], None]
) -> SyntheticRunner:
    """The runner for `config`, whose model must be a directory. Raises `ConfigError`."""
    model_dir = engine_model_dir(config)
    report("tokenizer", 0.5, str(model_dir))
    return SyntheticRunner(config, model_dir)


@final
class Pace:
    """Steps of `step_s` on a grid: the ends of consecutive steps are exactly `step_s` apart,
    however late a sleep returns, so that nothing drifts. A pause begins a new grid.
    """

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._due_at = float("-inf")

    def next_due(self, now: float) -> float:
        """The end of the step that starts now."""
        is_late = now - self._due_at >= self._step_s
        self._due_at = (now if is_late else self._due_at) + self._step_s
        return self._due_at


@final
class OrdinaryText:
    """`ids` of ordinary text. Where the model has them, only words of letters with a space before
    them: such an answer has as many spaces as tokens, whatever order they come in.
    """

    def __init__(self, ids: array[int]) -> None:
        self.ids = ids

    def at(self, seed: int, index: int) -> int:
        """The output token with that index in the answer."""
        noise = _PLACE.pack(seed, index)
        return self.ids[xxhash.xxh3_64_intdigest(noise) % len(self.ids)]


def read_vocabulary(model_dir: Path) -> OrdinaryText:
    """The words of the model's tokenizer.json. Raises `ConfigError` if it has no ordinary token."""
    tokenizer = read_json(model_dir / TOKENIZER_NAME)
    special = {int(token["id"]) for token in tokenizer.get("added_tokens", ())}
    special.update(read_eos_ids(model_dir))
    vocab = tokenizer.get("model", {}).get("vocab", {})
    # Unigram vocabularies are lists of (piece, score); the others map pieces to ids.
    ids = {int(i) for i in (vocab.values() if isinstance(vocab, dict) else range(len(vocab)))}
    if not (plain := ids - special):
        raise ConfigError(f"{model_dir}/tokenizer.json has no ordinary token")
    words = _words(vocab) & plain if isinstance(vocab, dict) else set()
    return OrdinaryText(array("I", sorted(words if len(words) >= _ENOUGH_WORDS else plain)))


def _words(vocab: dict[str, int]) -> set[int]:
    return {
        token_id
        for piece, token_id in vocab.items()
        if piece.startswith(_SPACE) and piece[1:].isascii() and piece[1:].isalpha()
    }
