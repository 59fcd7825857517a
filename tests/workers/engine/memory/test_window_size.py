"""The division of memory between blocks of windows and others, and what a long sequence takes."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from workers.engine.memory.forecast import MemoryChoice, forecast
from workers.engine.memory.window_size import (
    LEAST_WINDOWS,
    USUAL_CONTEXT,
    WindowDemand,
    choose_windows,
    pays,
)
from workers.engine.models.description import ModelDescription
from workers.engine.models.model_config import read_model_config

KIB: Final = 2**10
GIB: Final = 2**30
BLOCK: Final = 32
LONG: Final = 131_072
BAR: Final = 1.25
DEMAND: Final = WindowDemand(
    token_bytes=800 * KIB,
    other_bytes=80 * KIB,
    window=1024,
    block_size=BLOCK,
    token_budget=2048,
    wanted_tokens=0,
    most=512,
)
"""A Gemma 4 31B in 16 bits."""

GEMMA4_31B: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "vocab_size": 262_144,
    "hidden_size": 5376,
    "intermediate_size": 21_504,
    "num_hidden_layers": 60,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "num_global_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "attention_k_eq_v": True,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262_144,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
    "eos_token_id": 1,
}


@pytest.fixture(name="config")
def _config(tmp_path: Path) -> ModelDescription:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA4_31B))
    return read_model_config(tmp_path)


def test_a_long_sequence_takes_little_more_than_it_needs(config: ModelDescription) -> None:
    """A sequence of 128k tokens takes little more than it needs: ten layers need 80 KiB a token,
    and fifty 800 KiB of each of the last 1,024: 10.8 GiB, where all keys would be 110 GiB. The bar
    is a quarter more, also while a chunk of the token budget is computed.
    """
    for token_budget in (1024, 2048):
        choice = MemoryChoice("bfloat16", False, token_budget, LONG, LONG)
        found = forecast(config, 141 * 10**9, choice, BLOCK)
        assert found.token_bytes == 80 * KIB
        needed = LONG * 80 * KIB + 1024 * 800 * KIB
        taken = LONG * found.token_bytes + found.window_bytes
        assert needed <= taken <= 1.02 * needed
        assert taken + token_budget * 800 * KIB <= BAR * needed
        assert found.whole_windows >= 1
    all_keys = forecast(config, 141 * 10**9, choice, BLOCK, keeps_all=True)
    assert (all_keys.token_bytes, all_keys.window_bytes) == (880 * KIB, 0)
    assert all_keys.whole_windows == 0


@pytest.mark.parametrize("room", [40 * GIB, 70 * GIB])
def test_sequences_of_usual_length_take_all_of_both(room: int) -> None:
    found = choose_windows(room, DEMAND)
    usual = USUAL_CONTEXT * DEMAND.other_bytes
    left = room - found.num_bytes - found.num_windows * usual
    assert 0 <= left < usual + DEMAND.most_kept * DEMAND.token_bytes
    per_window = DEMAND.most_kept // BLOCK
    step = found.sizes.num_blocks - found.num_windows * per_window
    assert step * BLOCK >= DEMAND.token_budget
    assert found.num_bytes == found.sizes.num_blocks * BLOCK * DEMAND.token_bytes


def test_what_is_asked_for_comes_first() -> None:
    """Tokens that the configuration wants leave windows the rest, and at least two of them; more
    than sequences could use are not taken.
    """
    room = 40 * GIB
    long = choose_windows(room, DEMAND._replace(wanted_tokens=300_000))
    assert room - long.num_bytes >= 300_000 * DEMAND.other_bytes
    hopeless = choose_windows(room, DEMAND._replace(wanted_tokens=10**7))
    assert hopeless.num_windows == choose_windows(0, DEMAND).num_windows == LEAST_WINDOWS
    assert choose_windows(room, DEMAND._replace(most=5)).num_windows == 5


def test_where_it_pays() -> None:
    """Keeping windows pays, except near the window, and for a few MiB."""
    assert pays(800 * KIB, 1024, 8192, BLOCK)
    assert not pays(800 * KIB, 1024, 2048, BLOCK)
    assert pays(24 * KIB, 128, 4096, BLOCK)
    assert not pays(KIB, 20, 4096, 16)
