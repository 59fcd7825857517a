"""Which modules a `quantization_config` leaves in 16 bits."""

from typing import Any

import pytest

from workers.engine.load.kept_modules import read_kept

DOWN, QUERY = "model.layers.3.mlp.down_proj", "model.layers.3.self_attn.q_proj"


@pytest.mark.parametrize("key", [r"-:.*\.(?:0|3)\..*", r"-:.*layers\.3\."])
def test_a_pattern_may_have_colons_of_its_own(key: str) -> None:
    """GPTQModel's sign is what stands before the first one."""
    kept = read_kept({"quant_method": "gptq", "dynamic": {key: {}}})
    assert kept.has([DOWN])
    assert not kept.has(["model.layers.4.mlp.down_proj"])


@pytest.mark.parametrize("sign", ["", "+:"])
def test_a_pattern_without_a_minus_keeps_what_has_other_bits(sign: str) -> None:
    """A pattern without a minus keeps what has other bits, as in GPTQModel's mixtures."""
    dynamic = {rf"{sign}.*\.(?:down|up)_proj": {"bits": 8}, rf"{sign}.*q_proj": {"group_size": 32}}
    kept = read_kept({"quant_method": "gptq", "dynamic": dynamic})
    assert kept.has([DOWN])
    assert not kept.has([QUERY])


@pytest.mark.parametrize(
    ("stated", "is_down_kept", "is_query_kept"),
    [
        ({"block_name_to_quantize": "model.layers"}, False, False),
        ({"modules_in_block_to_quantize": [["self_attn.q_proj"]]}, True, False),
        (
            {
                "block_name_to_quantize": "model.layers",
                "modules_in_block_to_quantize": [["self_attn.q_proj"]],
            },
            True,
            False,
        ),
        (
            {
                "block_name_to_quantize": "vision.blocks",
                "modules_in_block_to_quantize": [["self_attn.q_proj"]],
            },
            True,
            True,
        ),
    ],
)
def test_a_module_is_quantised_only_if_every_list_has_it(
    stated: dict[str, Any], is_down_kept: bool, is_query_kept: bool
) -> None:
    """Optimum writes both: the blocks, and the modules within them."""
    kept = read_kept({"quant_method": "gptq", **stated})
    assert (kept.has([DOWN]), kept.has([QUERY])) == (is_down_kept, is_query_kept)
