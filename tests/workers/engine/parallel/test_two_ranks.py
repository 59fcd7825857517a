"""Two ranks on a CPU answer as one rank does, whatever the steps."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.bounded_run import run_bounded
from tests.fakes.int4_files import twins
from tests.fakes.latent_heads import make_right, write_with_head
from tests.fakes.tiny_drafters import (
    DFLASH,
    EAGLE3,
    add_gated_head,
    dflash_shapes,
    drafted_ids,
    eagle3_shapes,
    make_gated_right,
    random_drafter,
    write_drafter,
)
from tests.fakes.tiny_families import FAMILIES, write_family
from tests.fakes.tiny_models import write_tiny_model
from tests.workers.engine.load.test_expert_formats import (
    MXFP4,
    PACKED,
    expert_twins,
    in_mxfp4,
    in_packed,
)
from tests.workers.engine.parallel.answers import all_answers

OFTEN = ("llama3", "qwen3_5", "gpt_oss")
"""Dense with biases of no kind, hybrid, and a mixture with biases and sinks."""

LATENT = ("glm4_moe_lite", "deepseek_v3")
"""With latent attention, whose cached rows each rank has whole."""

BOUND_S = 300


def answers(
    model_dir: Path, num_ranks: int, device: str = "cpu", drafter: str = ""
) -> dict[str, Any]:
    """The answers of one rank on a CPU come from this process, which has torch; else from a process
    of their own, because ranks meet once in the life of a process, and what a card has captured
    ends with it.
    """
    if (num_ranks, device) == (1, "cpu"):
        alone = all_answers(model_dir, 1, device, drafter)
        told: dict[str, Any] = json.loads(json.dumps(alone))
        return told
    command = [sys.executable, "-m", "tests.workers.engine.parallel.answers"]
    done = run_bounded([*command, str(model_dir), str(num_ranks), device, drafter], BOUND_S)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in FAMILIES],
)
def test_two_ranks_answer_as_one(tmp_path: Path, family: str) -> None:
    # 152 tokens, so that each rank has half of the head.
    write_family(tmp_path, family, vocab_size=152)
    assert_equal(answers(tmp_path, 1), answers(tmp_path, 2))


@pytest.mark.parametrize(
    "name",
    [
        "packed",
        *[pytest.param(each, marks=pytest.mark.slow) for each in ("awq", "gptq", "mixture")],
    ],
)
def test_two_ranks_of_a_checkpoint_in_4_bits_answer_as_one(tmp_path: Path, name: str) -> None:
    """The head of 151 tokens is whole on each."""
    if name == "mixture":
        sizes = {"hidden_size": 64, "moe_intermediate_size": 64}
        source = write_family(tmp_path / "source", "qwen3_moe", **sizes)
        path, _ = expert_twins(tmp_path, source, PACKED, in_packed)
    else:
        path, _ = twins(tmp_path, name)
    assert_equal(answers(path, 1), answers(path, 2))


def test_two_ranks_of_experts_in_mxfp4_answer_as_one(tmp_path: Path) -> None:
    """Each has one of the two powers of a row."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 152}
    source = write_family(tmp_path / "source", "gpt_oss", **sizes)
    path, _ = expert_twins(tmp_path, source, MXFP4, in_mxfp4)
    assert_equal(answers(path, 1), answers(path, 2))


@pytest.mark.parametrize(
    ("family", "drafter"),
    [
        ("llama3", "suffix"),
        ("qwen3_5", "mtp"),
        pytest.param("qwen3_5", "suffix", marks=pytest.mark.slow),
        ("glm4_moe_lite", "mtp"),
        pytest.param("qwen3_5_moe", "mtp", marks=pytest.mark.slow),
        pytest.param("deepseek_v3", "mtp", marks=pytest.mark.slow),
        pytest.param("qwen3", "dflash", marks=pytest.mark.slow),
        pytest.param("qwen3", "eagle3", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_with_drafts_answer_as_one_without(
    tmp_path: Path, family: str, drafter: str
) -> None:
    """Some drafts are right, but of networks that are drawn at random."""
    path, drafting = _with_drafter(tmp_path, family, drafter)
    one, two = answers(path, 1), answers(path, 2, drafter=drafting)
    num_drafts, num_accepted = two.pop("drafts"), two.pop("accepted")
    assert num_drafts > 0
    if drafter in ("suffix", "mtp"):
        assert 0.1 * num_drafts < num_accepted < num_drafts
    assert two.pop("measured") == one["chunked"]
    assert_equal(one, two)


def _with_drafter(room: Path, family: str, drafter: str) -> tuple[Path, str]:
    """A model, and the drafter as a worker's `speculation` names it."""
    path = room / "model"
    if family in LATENT:
        write_with_head(path, family)
        make_right(path, influence=0.03)
        return path, str(path)
    if family == "qwen3":  # what the tiny drafters are made for
        write_tiny_model(path, num_hidden_layers=5)
    else:
        write_family(path, family, vocab_size=152)
    if drafter == "mtp":
        add_gated_head(path)
        make_gated_right(path, influence=0.03)
        return path, str(path)
    if drafter == "suffix":
        return path, drafter
    sizes, shapes = (DFLASH, dflash_shapes) if drafter == "dflash" else (EAGLE3, eagle3_shapes)
    tensors = random_drafter(shapes(sizes)) | (drafted_ids(sizes) if drafter == "eagle3" else {})
    return path, str(write_drafter(room / "drafter", sizes, tensors))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two cards")
@pytest.mark.parametrize("family", OFTEN)
def test_two_cards_answer_as_one(tmp_path: Path, family: str) -> None:
    """Two cards answer as one, with graphs, in float32."""
    write_family(tmp_path, family, vocab_size=152)
    assert_equal(answers(tmp_path, 1, "cuda"), answers(tmp_path, 2, "cuda"))


def assert_equal(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Equal tokens, and log-probabilities within 1e-5."""
    for alone, together in zip(one.pop("logprobs"), two.pop("logprobs"), strict=True):
        assert [token for token, _ in alone] == [token for token, _ in together]
        for (_, expected), (_, found) in zip(alone, together, strict=True):
            assert found == pytest.approx(expected, abs=1e-5)
    assert two == one
