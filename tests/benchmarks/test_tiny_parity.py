"""The engine and transformers say the same, token for token: a part of what
`python -m benchmarks.tiny_eval.parity` compares.
"""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from benchmarks.tiny_eval import parity
from benchmarks.tiny_eval.__main__ import SEED
from benchmarks.tiny_eval.parity import MODEL, compare, main
from protocol.sampling import SamplingParams
from training.data import SKILLS, skill_cases
from workers.model_dir import builtin_dir


def test_cases_are_answered_with_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rendered prompts and greedy float32 answers are equal; the report says of how many."""
    skills = SKILLS[6:7]
    monkeypatch.setattr(parity, "SKILLS", skills)
    result = tmp_path / "result.json"
    assert main(["--cases", "1", "--json", str(result)]) == 0
    report = json.loads(result.read_text())
    assert report["num_cases"] == len(skills)
    assert report["num_tokens"] > 10 * len(skills)
    assert report["differences"] == []


def test_another_models_answer_is_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine with other weights is found out, and where. Its nonsense is cut at 24 tokens."""
    monkeypatch.setattr(parity, "_GREEDY", SamplingParams(max_tokens=24, temperature=0.0))
    model_dir = tmp_path / "model"
    shutil.copytree(builtin_dir(MODEL), model_dir)
    tensors = load_file(model_dir / "model.safetensors")
    tensors["model.norm.weight"] = -tensors["model.norm.weight"]
    save_file(tensors, model_dir / "model.safetensors")
    done: list[int] = []
    found = compare(skill_cases("arithmetic", SEED, 1), done.append, str(model_dir))
    assert done == [1]
    (difference,) = found.differences
    assert difference.skill == "arithmetic"
    assert difference.num_equal < found.num_tokens
    assert difference.margin is None or difference.margin > 0
