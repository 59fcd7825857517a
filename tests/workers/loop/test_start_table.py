"""The table at the end of a start: every row, aligned, for a card, a CPU and no model at all."""

import pytest
from msgspec.structs import replace

from config import SpeculationConfig
from protocol.messages import EngineFacts
from tests.fakes.fleet import facts
from workers.loop.heartbeat import PhaseClock
from workers.loop.start_table import DeviceUse, LargestStep, start_table

CARD: EngineFacts = replace(
    facts(max_seqs=256, kv_tokens=712_384), device="cuda:0", dtype="bfloat16", context_length=40_960
)
USE = DeviceUse(15_270_000_000, 105_047_000_000, 1, 30, LargestStep(2 * 2**30))


def test_a_card_has_every_row() -> None:
    """Weights, keys and values in tokens, sequences, window, budget, graphs, seconds by phase."""
    seconds = (("import", 2.1), ("device", 0.01), ("load", 3.25), ("memory", 0.9))
    assert start_table(CARD, "qwen3-8b", 40.0, seconds, USE) == [
        "engine        qwen3-8b: native on cuda:0, bfloat16",
        "weights       14.22 GiB",
        "keys, values  712,384 tokens in blocks of 32, 97.83 GiB",
        "sequences     up to 256 at once (2,782 tokens each, if all run)",
        "window        40,960 tokens",
        "budget        4,096 tokens a step, gaps of about 40 ms beside prompts",
        "graphs        1 of 30 captured, the others when idle",
        "largest step  2.00 GiB, as measured",
        "seconds       import 2.1, load 3.2, memory 0.9; 6.3 in all",
    ]


def test_a_cpu_has_no_graphs() -> None:
    """The table of a CPU says that it has no graphs."""
    use = USE._replace(num_captured=0, num_graphs=0, weights_bytes=29 * 2**20)
    lines = start_table(CARD, "m", None, (), use)
    assert "graphs        none on this device" in lines
    assert "weights       29.0 MiB" in lines
    assert lines[-1] == "seconds       0.0 in all"


def test_what_is_in_the_hosts_memory_is_told_apart() -> None:
    """What is in the host's memory has a row of its own, because it takes nothing of the card."""
    lines = start_table(CARD, "m", None, (), USE._replace(host_bytes=1_246_000_000))
    assert "weights       14.22 GiB, 1.16 GiB more on the host" in lines


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (0, "2.00 GiB, as measured"),
        (2**29, "2.00 GiB, as measured; other processes took 512.0 MiB of the card meanwhile"),
        (None, "2.00 GiB, as measured, with what other processes took of the card meanwhile"),
    ],
)
def test_the_largest_step_is_told_apart_from_what_others_took(
    others: int | None, said: str
) -> None:
    """The memory of the largest step is told apart from what others took: it was reported as 6.86
    GiB while three other engines were starting.
    """
    lines = start_table(CARD, "m", None, (), USE._replace(step=LargestStep(2 * 2**30, others)))
    assert f"largest step  {said}" in lines


def test_what_a_start_goes_on_without_has_a_row() -> None:
    lines = start_table(CARD, "m", None, (), USE._replace(trouble="4-bit products: Triton's"))
    assert lines[-2] == "trouble       4-bit products: Triton's"


@pytest.mark.parametrize(
    ("drafting", "row"),
    [
        (SpeculationConfig(), "drafts        by suffix, as many as pay"),
        (SpeculationConfig("/d/mtp", 2), "drafts        by /d/mtp, 2 at a time"),
    ],
)
def test_a_drafter_has_a_row(drafting: SpeculationConfig, row: str) -> None:
    """A drafter has a row in the table, so that an operator sees that the setting took effect."""
    assert row in start_table(CARD, "m", None, (), USE, drafting)


def test_an_engine_without_a_model_has_no_weights() -> None:
    """What is not there is left out."""
    names = [line.split()[0] for line in start_table(CARD, "m", None, (), None)]
    assert names == ["engine", "keys,", "sequences", "window", "budget", "seconds"]


def test_phases_are_timed_from_report_to_report() -> None:
    """A phase lasts until the next begins; one that comes twice counts once, with both times."""
    clock = PhaseClock()
    for phase, now in (("import", 1.0), ("load", 3.0), ("load", 4.0), ("memory", 8.0)):
        clock.enter(phase, now)
    clock.enter("load", 8.5)
    assert clock.seconds(9.0) == (("import", 2.0), ("load", 5.5), ("memory", 0.5))
