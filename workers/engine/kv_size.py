"""How many blocks of keys and values to take.

Owns the measurement: what is free, and on a GPU what the largest step needs besides. Must not know
the layout of the cache.
"""

from array import array

import torch

from config import WorkerConfig
from kernels.sample import Draw, sample
from workers.core.plan import Chunk
from workers.engine.batch import make_batch
from workers.engine.kv_cache import (
    CPU_CONTEXTS,
    CPU_SHARE,
    CUDA_SHARE,
    KvCache,
    kv_token_bytes,
    num_kv_blocks,
)
from workers.engine.memory import available_bytes
from workers.engine.models.qwen3 import Qwen3


def choose_kv_blocks(config: WorkerConfig, model: Qwen3, context: int, dtype: torch.dtype) -> int:
    """`kv_tokens` of the configuration, else what memory allows: on a CPU at most a few windows,
    on a GPU 90 % of what the weights and the largest step leave. Raises `ConfigError`.
    """
    device = model.weights.embedding.device
    wanted = config.kv_tokens
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        peak = _peak_step_bytes(config, model, context, dtype)
        budget = int(CUDA_SHARE * (free - peak))
    elif wanted is not None:
        budget = available_bytes()
    else:
        budget = int(CPU_SHARE * available_bytes())
    blocks = num_kv_blocks(
        wanted_tokens=wanted,
        budget_bytes=max(0, budget),
        token_bytes=kv_token_bytes(model.config, dtype),
        block_size=config.block_size,
    )
    if wanted is None and device.type == "cpu":
        blocks = min(blocks, CPU_CONTEXTS * -(-context // config.block_size))
    return blocks


@torch.inference_mode()
def _peak_step_bytes(config: WorkerConfig, model: Qwen3, context: int, dtype: torch.dtype) -> int:
    """Temporary memory of a full chunk at the end of a full window, or of a full batch of draws.

    Every block of the imagined sequence is the same one: what it computes does not matter.
    """
    device = model.weights.embedding.device
    length = min(config.token_budget, context)
    num_blocks = -(-context // config.block_size)
    cache = KvCache(model.config, 1, config.block_size, device, dtype)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    chunk = Chunk(0, context - length, length, (0,) * num_blocks, samples=True)
    tokens = array("I", bytes(4 * context))
    batch = make_batch([chunk], {0: tokens}, config.block_size, device)
    hidden = model.forward(batch, cache)
    rows = hidden[:1].expand(config.max_seqs, -1)
    ones = torch.ones(config.max_seqs, device=device)
    zeros = torch.zeros(config.max_seqs, dtype=torch.int64, device=device)
    sample(model.logits(rows), Draw(zeros, ones, top_p=0.9 * ones), zeros)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return peak
