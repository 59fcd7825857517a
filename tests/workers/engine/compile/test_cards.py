"""Every Triton kernel compiles for smaller cards, within the shared memory that they have."""

import json
from pathlib import Path

import pytest
import torch

from config import WorkerConfig
from kernels.linear.config import Skinny, fitted
from protocol.errors import ConfigError
from tests.fakes.uninterpreted import run_uninterpreted
from workers.engine import settings
from workers.engine.models.model_config import read_model_config
from workers.model_dir import dummy_dir

SHARED_KIB = {80: 163, 86: 99, 89: 99, 120: 99, 121: 99}
"""What a program may take: NVIDIA's table of compute capabilities."""

IN_8_BITS = ("quantization=fp8", "kv_dtype=fp8")
CASES = [
    *((arch, "dummy:gemma-3-12b", ()) for arch in SHARED_KIB),
    (86, "dummy:llama-3.1-8b", ()),
    *((arch, "dummy:qwen3.6-27b", ("speculation=auto",)) for arch in (80, 120)),
    (86, "dummy:qwen3.6-27b", ()),
    *((arch, "dummy:qwen3-8b", IN_8_BITS if arch >= 89 else ()) for arch in SHARED_KIB),
    *((arch, "dummy:qwen3-8b", ("quantization=int4",)) for arch in (80, 86, 120)),
    (86, "dummy:qwen3-30b-a3b", ()),
    (120, "dummy:gpt-oss-20b", ()),
    *((arch, "dummy:gemma-4-31b", ()) for arch in (86, 120)),
    (86, "dummy:gemma-4-26b-a4b", ()),
    (120, "dummy:gemma-4-e4b", ()),
    *((arch, "dummy:glm-4.7-flash-30b", ()) for arch in (86, 120)),
    (86, "dummy:glm-4.7-flash-30b", ("invariant=true",)),
    (86, "dummy:qwen3.6-27b", ("quantization=int4", "head=int4", "embedding=host")),
    (120, "dummy:qwen3.6-27b", ("quantization=int4", "head=fp8", "speculation=auto")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "model", "keys"), CASES)
def test_all_kernels_compile_for_a_card(
    arch: int, model: str, keys: tuple[str, ...], tmp_path: Path
) -> None:
    """Heads of 256 and of 128, normed or not, windows, gelu, 8 and 4 bits; half a minute each."""
    module = "tests.workers.engine.compile.card_checks"
    found = json.loads(run_uninterpreted(module, str(arch), model, *keys, cache=tmp_path))
    assert not found["errors"]
    assert found["count"] > 30
    assert found["most_bytes"] <= SHARED_KIB[arch] * 1024


@pytest.mark.slow
@pytest.mark.parametrize("arch", [*SHARED_KIB, 90, 100, 103])
def test_products_in_4_bits_compile_for_a_card(arch: int, tmp_path: Path) -> None:
    """Triton compiles the products in 4 bits for a card, with all groups, with and without zero
    points.
    """
    words = run_uninterpreted("tests.kernels.int4_card_checks", str(arch), cache=tmp_path)
    used, limit = map(int, words.split())
    assert 0 < used <= limit


def test_a_product_takes_what_a_card_has() -> None:
    """Fewer stages first, then fewer columns; what fits stays as it is."""
    config = Skinny(block_n=128, block_k=128, splits=1, num_warps=8, num_stages=4)
    assert fitted(config, 20 * 1024, 99 * 1024) == config
    assert fitted(config, 32 * 1024, 99 * 1024) == config._replace(num_stages=2)
    assert fitted(config, 64 * 1024, 99 * 1024) == config._replace(num_stages=2, block_k=64)
    assert fitted(config, 2**30, 99 * 1024).block_k == 32


def test_8_bits_need_a_card_that_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ampere is refused in one line; Ada and a CPU are not."""
    shape = read_model_config(dummy_dir("dummy:qwen3-8b"))
    worker = WorkerConfig("w", "dummy:qwen3-8b", "m", (), token_budget=512, kv_dtype="fp8")
    card = torch.device("cuda", 0)
    monkeypatch.setattr(settings, "has_fp8", lambda _: False)
    with pytest.raises(ConfigError, match="before Ada"):
        settings.compute_dtype(worker, shape, card)
    assert settings.compute_dtype(worker, shape, torch.device("cpu")) == torch.float32
    monkeypatch.setattr(settings, "has_fp8", lambda _: True)
    assert settings.compute_dtype(worker, shape, card) == torch.bfloat16
