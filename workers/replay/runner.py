"""What the engines without a model share: their limits, and a runner that computes nothing ahead.

Owns the facts of such an engine. Must not import torch: it starts in the time of an interpreter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from config import WorkerConfig
from protocol.errors import ConfigError
from protocol.messages import RETAINS, EngineFacts, TokenLogprobs
from protocol.sampling import SamplingParams
from workers.model_dir import CONFIG_NAME, read_eos_ids, read_json
from workers.scheduler import CARD_SEQS, Sampled, StepPlan, most_sequences

_DEFAULT_CONTEXT: Final = 32_768
_DEFAULT_KV_TOKENS: Final = 1 << 20


class ReplayRunner:
    """A `Runner` without `collect`, which subclasses add: a step is computed when its tokens
    are asked for.
    """

    lookahead: Final = 0
    has_pending_captures: Final = False

    def __init__(self, config: WorkerConfig, model_dir: Path) -> None:
        """Raises `ConfigError` for a model whose files cannot be read."""
        self.model_dir = model_dir
        self.facts = _engine_facts(config, model_dir)
        self.eos_ids = frozenset(read_eos_ids(model_dir))

    def prepare(self, *, pending_only: bool) -> bool:  # noqa: ARG002 - the seam's
        """There is nothing to prepare."""
        return False

    def launch(self, plan: StepPlan) -> StepPlan:
        """The step itself is done by `collect`."""
        return plan


def sampled(seq: int, ids: tuple[int, ...], sampling: SamplingParams) -> Sampled:
    """The answer for a chunk; a token that nothing was drawn for has the log-probability 0."""
    if sampling.logprobs is None:
        return Sampled(seq, ids)
    tops = [((token_id, 0.0),) if sampling.logprobs else () for token_id in ids]
    return Sampled(seq, ids, tuple(TokenLogprobs(0.0, top) for top in tops))


def _engine_facts(config: WorkerConfig, model_dir: Path) -> EngineFacts:
    """The limits of `config` within the model's window. Raises `ConfigError`."""
    shape = read_json(model_dir / CONFIG_NAME)
    window = int(shape.get("max_position_embeddings", _DEFAULT_CONTEXT))
    num_blocks = (config.kv_tokens or _DEFAULT_KV_TOKENS) // config.block_size
    kv_tokens = num_blocks * config.block_size
    if num_blocks == 0:
        raise ConfigError(
            f"worker `{config.name}`: kv_tokens {config.kv_tokens} is less than one block of "
            f"{config.block_size}"
        )
    return EngineFacts(
        kind=config.engine,
        device="none",
        dtype="none",
        context_length=min(config.context_length or config.max_context or window, window),
        block_size=config.block_size,
        kv_tokens=kv_tokens,
        max_seqs=most_sequences(config.max_seqs, kv_tokens, CARD_SEQS),
        token_budget=config.token_budget,
        files_digest=bytes(16),  # the supervisor reads the files and fills this in
        capabilities=(RETAINS,),
    )
