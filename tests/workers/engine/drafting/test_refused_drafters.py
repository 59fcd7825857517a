"""A drafter that is not for the model is refused in one line, before its weights are read."""

from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.errors import ConfigError
from tests.fakes.tiny_drafters import (
    DFLASH,
    EAGLE3,
    MTP,
    dflash_shapes,
    eagle3_shapes,
    mtp_shapes,
    random_drafter,
    write_drafter,
)
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from workers.engine.drafting.description import read_drafter
from workers.engine.drafting.load import load_drafter
from workers.engine.models.model_config import read_model_config
from workers.engine.models.network import Network


@pytest.fixture(scope="module", name="target")
def _target(tmp_path_factory: pytest.TempPathFactory) -> Network:
    path = write_tiny_model(tmp_path_factory.mktemp("target"), num_hidden_layers=5)
    return load_tiny(path, kv_tokens=64).model


def _own(**changes: Any) -> dict[str, Any]:
    return {"dflash_config": {**DFLASH["dflash_config"], **changes}}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({**DFLASH, "num_target_layers": 6}, "number of target layers is 6, and the model's is 5"),
    ({**DFLASH, "hidden_size": 64}, "hidden size is 64, and the model's is 48"),
    ({**DFLASH, "vocab_size": 152}, "vocabulary is 152, and the model's is 151"),
    ({**DFLASH, **_own(target_layer_ids=[1, 5])}, "reads layers .1, 5. of one that has 5"),
    ({**DFLASH, **_own(target_layer_ids="1")}, "not a list of numbers"),
    ({**DFLASH, **_own(mask_token_id=151)}, "mask_token_id is 151, not a token"),
    ({**DFLASH, **_own(projector_type="mlp")}, "projector_type = 'mlp' is not supported"),
    ({**DFLASH, **_own(use_swa=True)}, "use_swa = True is not supported"),
    ({**DFLASH, **_own(output_multiplier=2.0)}, "output_multiplier = 2.0 is not supported"),
    ({**DFLASH, **_own(use_aux_hidden_state=False)}, "use_aux_hidden_state = false"),
    (
        {**DFLASH, "layer_types": ["sliding_attention"] * 2, **_own(causal=False)},
        "a window that sees ahead is not supported",
    ),
    ({**DFLASH, **_own(conv_kernel_size=2, conv_group_size=7)}, "conv_group_size = 7"),
    ({**EAGLE3, "target_hidden_size": 64}, "reads 64 numbers, and the model has 48"),
    ({**EAGLE3, "norm_before_fc": True}, "norm_before_fc = True is not supported"),
    ({**EAGLE3, "num_hidden_layers": 2}, "num_hidden_layers = 2 is not supported"),
    ({**MTP, "mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers = 2 is not supported"),
    ({**MTP, "hidden_size": 64}, "hidden size is 64"),
    ({**MTP, "mtp_num_hidden_layers": 0}, "Qwen3ForCausalLM is no drafter that we know"),
    ({**MTP, "model_type": "mamba"}, "an MTP head of model_type 'mamba'"),
]


@pytest.mark.parametrize(("config", "reason"), REFUSED)
def test_another_models_drafter_is_refused(
    config: dict[str, Any], reason: str, target: Network, tmp_path: Path
) -> None:
    """Another model's drafter is refused by its config.json alone: there are no weights."""
    path = write_drafter(tmp_path / "drafter", config, {"none": torch.zeros(1)})
    with pytest.raises(ConfigError, match=reason) as refused:
        load_drafter(path, target, 100)
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)


def test_tensors_that_do_not_fit_are_named(target: Network, tmp_path: Path) -> None:
    """One is missing, one has another shape, one is unknown, and one would say which tokens."""
    tensors = random_drafter(dflash_shapes(DFLASH))
    missing = {name: tensor for name, tensor in tensors.items() if name != "fc.weight"}
    wide = {**tensors, "fc.weight": torch.zeros(48, 48 * 3)}
    markov = {**tensors, "markov_w1": torch.zeros(151, 8)}
    small = random_drafter(eagle3_shapes(EAGLE3))
    for number, (config, given, reason) in enumerate(
        (
            (DFLASH, missing, "no tensor fc.weight"),
            (DFLASH, wide, "fc.weight has shape"),
            (DFLASH, markov, "a tensor markov_w1 that its config.json does not explain"),
            (EAGLE3, small, "60 tokens and no d2t"),
        )
    ):
        path = write_drafter(tmp_path / str(number), config, given)
        with pytest.raises(ConfigError, match=reason):
            load_drafter(path, target, 100)


def test_a_head_is_found_in_the_models_own_checkpoint(tmp_path: Path) -> None:
    """A head is found in the model's own checkpoint, beside the model's tensors, of which it takes
    none.
    """
    path = write_tiny_model(tmp_path, num_hidden_layers=5, mtp_num_hidden_layers=1)
    runner = load_tiny(path, kv_tokens=64)
    with pytest.raises(ConfigError, match=r"no tensor mtp\."):
        load_drafter(path, runner.model, 100)
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, **random_drafter(mtp_shapes(MTP | {"intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2}))}, path / "model.safetensors",
        metadata={"format": "pt"})  # fmt: skip
    runner = load_tiny(path, kv_tokens=64)
    assert load_drafter(path, runner.model, 100).name == "mtp"


def test_taps_are_even_where_a_file_does_not_say(target: Network, tmp_path: Path) -> None:
    """Taps are spread evenly where a file does not name them, as those of the published drafter of
    Qwen3-8B: 1, 9, 17, 25, 33 of 36 layers.
    """
    own = {"mask_token_id": 3}
    config = {**DFLASH, "num_hidden_layers": 5, "num_target_layers": 36, "dflash_config": own,
              "layer_types": None}  # fmt: skip
    path = write_drafter(tmp_path / "drafter", config, {"none": torch.zeros(1)})
    model = write_tiny_model(tmp_path / "model", num_hidden_layers=36)
    assert read_drafter(path, read_model_config(model)).taps == (1, 9, 17, 25, 33)
