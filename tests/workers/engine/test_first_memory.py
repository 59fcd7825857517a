"""On a CPU keys and values take memory as they are written, not at the start."""

import re
import subprocess
import sys

import pytest
import torch

from tests.fakes.tiny_models import load_tiny, write_tiny_model
from workers.engine.models.kv_cache import KvCache

START = """
from config import WorkerConfig
from workers.engine.start import load_runner
worker = WorkerConfig(
    "cpu", "builtin:herma-tiny", "tiny", (), token_budget=2048, device="cpu", kv_tokens=262_144
)
runner = load_runner(worker, lambda *_: None)
assert runner.facts.kv_tokens == 262_144
print(open("/proc/self/status").read())
"""


def test_a_start_takes_little_memory() -> None:
    """A start of the built-in model takes little memory: it has 2.1 GB of keys and values, 28 MB of
    weights and torch.
    """
    done = subprocess.run(
        [sys.executable, "-c", START], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    peak = re.search(r"VmHWM:\s+(\d+) kB", done.stdout)
    assert peak is not None
    assert int(peak[1]) < 700 * 1024


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_memory_is_zeros_that_keep_what_is_written(
    tmp_path_factory: pytest.TempPathFactory, dtype: torch.dtype
) -> None:
    """Memory is zeros that keep what is written, in every dtype, also behind the object that made
    it.
    """
    config = load_tiny(write_tiny_model(tmp_path_factory.mktemp("model"))).model.config
    cache = KvCache(config, 5, 16, torch.device("cpu"), dtype)
    heads = config.attention
    shape = (6, 16, heads.num_kv_heads, heads.head_dim)
    assert cache.num_bytes() == len(config.attentions) * 2 * shape[0] * 16 * (
        heads.num_kv_heads * heads.head_dim * dtype.itemsize
    )
    assert not cache.memory.float().any()
    keys, values = cache.layers[-1]
    assert keys.shape == values.shape == shape
    values[cache.dummy_block].fill_(2.0)
    del cache
    assert values[5].float().eq(2.0).all()
    assert not keys.float().any()
    assert not values[:5].float().any()
