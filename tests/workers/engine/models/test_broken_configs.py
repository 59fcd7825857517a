"""config.json files with broken numbers, as an interrupted copy or a converter leaves them: one
line that names the key, and no memory taken.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from protocol.errors import ConfigError
from tests.fakes.tiny_models import tiny_config
from workers.engine.models.model_config import read_model_config


def said(folder: Path, config: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError) as caught:
        read_model_config(folder)
    return str(caught.value).removeprefix(str(folder))


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("num_hidden_layers", 10**12, "num_hidden_layers is 1000000000000, more than 10000"),
        ("num_hidden_layers", 10**30, "more than 10000: fetch it again"),
        ("hidden_size", 10**30, "more than 2147483647: fetch it again"),
        ("rms_norm_eps", float("inf"), "rms_norm_eps is inf, not a positive number"),
        ("rms_norm_eps", float("nan"), "rms_norm_eps is nan, not a positive number"),
        ("rms_norm_eps", 10**400, "not a positive number"),
        ("rope_scaling", {"rope_type": ["yarn"], "factor": 4.0}, "rope scaling ['yarn']"),
        ("rope_scaling", {"rope_type": "yarn", "factor": float("inf"),
                          "original_max_position_embeddings": 64}, "factor is inf"),
        ("layer_types", [{}, {}], "layer_types with {} is not supported"),
    ],
)  # fmt: skip
def test_a_broken_number_is_one_line(key: str, value: object, text: str, tmp_path: Path) -> None:
    line = said(tmp_path, tiny_config() | {"use_sliding_window": True, key: value})
    assert text in line
    assert "\n" not in line


@pytest.mark.parametrize("value", ["x", [1], float("inf"), -1, True])
def test_a_broken_number_of_drafting_layers_is_one_line(value: object, tmp_path: Path) -> None:
    config = transformers.DeepseekV3Config(num_hidden_layers=2, first_k_dense_replace=1).to_dict()
    line = said(tmp_path, config | {"num_nextn_predict_layers": value})
    assert line.startswith("/config.json: num_nextn_predict_layers is ")
