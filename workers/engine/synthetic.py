"""An engine without a model: made-up tokens at an exact pace.

Owns the answers of `engine = "synthetic"`: the token at a position is a hash of seed and
position, so a resumed sequence continues as the undisturbed one. It reads the model's text files
and never its weights. Must not import torch: load tests start in the time of an interpreter.
"""

from __future__ import annotations

import json
import struct
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

import xxhash

from config import WorkerConfig
from protocol.errors import ConfigError
from protocol.messages import EngineFacts, TokenLogprobs
from protocol.sampling import SamplingParams
from workers.core.plan import Chunk, Sampled, StepPlan, StepResult

_DEFAULT_CONTEXT: Final = 32_768
_DEFAULT_KV_TOKENS: Final = 1 << 20
_POSITION: Final = struct.Struct("<QQ")


@final
class SyntheticRunner:
    """The runner's seam without a model. One sequence costs a few counters."""

    lookahead: Final = 0

    def __init__(self, config: WorkerConfig, model_dir: Path) -> None:
        text_config = _read_json(model_dir / "config.json")
        self.model_dir = model_dir
        self.eos_ids = _eos_ids(model_dir, text_config)
        self.facts = _facts(config, text_config)
        self._step_s = config.step_ms / 1e3
        self._ids = _plain_ids(model_dir, self.eos_ids)
        self._sequences: dict[int, tuple[int, SamplingParams]] = {}

    @property
    def is_wishing(self) -> bool:
        """Never: there is nothing to prepare."""
        return False

    def prepare(self, *, wished_only: bool) -> bool:  # noqa: ARG002 - the seam's
        """There is nothing to prepare."""
        return False

    def launch(self, plan: StepPlan) -> StepPlan:
        """Nothing is done before it is waited for."""
        return plan

    def collect(self, plan: StepPlan) -> StepResult:
        """Tokens for all sampling chunks of `plan`, after `step_ms`."""
        started_at = time.monotonic()
        for seq in plan.ended:
            self._sequences.pop(seq, None)
        for start in plan.started:
            self._sequences[start.seq] = (start.seed, start.sampling)
        sampled = tuple(self._sample(chunk) for chunk in plan.chunks if chunk.samples)
        if (rest_s := started_at + self._step_s - time.monotonic()) > 0:
            time.sleep(rest_s)
        return StepResult(plan.step, sampled)

    def _sample(self, chunk: Chunk) -> Sampled:
        seed, sampling = self._sequences[chunk.seq]
        noise = _POSITION.pack(seed, chunk.start + chunk.length)
        token_id = self._ids[xxhash.xxh3_64_intdigest(noise) % len(self._ids)]
        if sampling.logprobs is None:
            return Sampled(chunk.seq, (token_id,))
        top = ((token_id, 0.0),) if sampling.logprobs else ()
        return Sampled(chunk.seq, (token_id,), (TokenLogprobs(0.0, top),))


def load_synthetic(
    config: WorkerConfig, report: Callable[[str, float, str], None]
) -> SyntheticRunner:
    """The runner for `config`, whose model must be a directory. Raises `ConfigError`."""
    model_dir = Path(config.model)
    if not model_dir.is_dir():
        raise ConfigError(
            f"worker `{config.name}`: model {config.model} is no directory; the synthetic engine "
            "needs a directory with tokenizer.json and config.json"
        )
    report("tokenizer", 0.5, str(model_dir))
    return SyntheticRunner(config, model_dir)


def read_vocab_size(model_dir: Path) -> int | None:
    """The ids that the model can embed, if its config.json says so."""
    size = _read_json(model_dir / "config.json").get("vocab_size")
    return size if isinstance(size, int) and size > 0 else None


def _facts(config: WorkerConfig, text_config: dict[str, Any]) -> EngineFacts:
    window = int(text_config.get("max_position_embeddings", _DEFAULT_CONTEXT))
    num_blocks = (config.kv_tokens or _DEFAULT_KV_TOKENS) // config.block_size
    if num_blocks == 0:
        raise ConfigError(
            f"worker `{config.name}`: kv_tokens {config.kv_tokens} is less than one block of "
            f"{config.block_size}"
        )
    return EngineFacts(
        kind="synthetic",
        device="none",
        dtype="none",
        context_length=min(config.context_length or window, window),
        block_size=config.block_size,
        kv_tokens=num_blocks * config.block_size,
        max_seqs=config.max_seqs,
        token_budget=config.token_budget,
        files_digest=bytes(16),  # the supervisor, who reads the files, fills it in
    )


def _plain_ids(model_dir: Path, eos_ids: frozenset[int]) -> array[int]:
    """The ids of ordinary text: in the vocabulary, but no added token."""
    tokenizer = _read_json(model_dir / "tokenizer.json")
    added = {int(token["id"]) for token in tokenizer.get("added_tokens", ())}
    vocab = tokenizer.get("model", {}).get("vocab", {})
    # Unigram vocabularies are lists of (piece, score); the others map pieces to ids.
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
    plain = array("I", sorted(set(ids) - added - eos_ids))
    if not plain:
        raise ConfigError(f"{model_dir}/tokenizer.json has no ordinary token")
    return plain


def _eos_ids(model_dir: Path, text_config: dict[str, Any]) -> frozenset[int]:
    path = model_dir / "generation_config.json"
    named = _read_json(path).get("eos_token_id") if path.is_file() else None
    ids = named if named is not None else text_config.get("eos_token_id")
    if ids is None:
        return frozenset()
    return frozenset(ids if isinstance(ids, list) else (ids,))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return value
