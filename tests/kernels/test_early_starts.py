"""No kernel that begins before the one ahead has ended relies on what that one writes."""

# ruff: noqa: ANN001, ANN202, N803 - device code is typed by Triton

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import torch
import triton
import triton.language as tl

from benchmarks.drive import Drive, fresh_runner
from config import SpeculationConfig
from kernels.delta_rule import RowSpan, plan_spans, verified
from kernels.delta_rule import device as delta
from kernels.delta_rule.row_steps import FEW_ROW_TILES, MANY_ROW_TILES, RowTiles
from kernels.experts import Activation, ExpertWeights, Routing, few, router
from kernels.latent import device as latents
from kernels.launch import Launch
from protocol.sampling import SamplingParams
from tests.fakes.drafts import CardDrafts
from tests.fakes.early_starts import Watch, early_starts
from tests.fakes.pairs import each_once
from tests.fakes.tiny_drafters import add_gated_head
from tests.fakes.tiny_families import write_family
from tests.fakes.tiny_models import load_tiny, write_tiny_model
from tests.kernels.delta_cases import EPS, drawn_rows, layer
from tests.kernels.test_delta_verify import NUM_SLOTS, ONE_KEY, STEPS, begun, planned
from tests.kernels.test_latent import DECODES, ODD, make_case
from tests.workers.engine.drafting.cases import made
from workers.engine.drafting.drafter import Drafter
from workers.engine.graphs.capture import run_again
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.runner import ModelRunner

CPU: Final = torch.device("cpu")
FEW: Final = SamplingParams(2, temperature=0.0, ignore_eos=True)


@pytest.fixture(name="watch")
def _watch() -> Iterator[Watch]:
    with early_starts() as watch:
        yield watch


@triton.jit
def _copy_kernel(
    from_ptr, to_ptr, LOADS: tl.constexpr, STORES: tl.constexpr, LETS: tl.constexpr,
    WAITS: tl.constexpr,
):  # fmt: skip
    """Lets the next one begin, loads and stores, each first of all or behind the wait."""
    if LETS == 0:
        tl.extra.cuda.gdc_launch_dependents()
    if LOADS == 0:
        found = tl.load(from_ptr)
    if STORES == 0:
        tl.store(to_ptr, 1.0)
    if WAITS:
        tl.extra.cuda.gdc_wait()
    if LETS == 1:
        tl.extra.cuda.gdc_launch_dependents()
    if LOADS == 1:
        found = tl.load(from_ptr)
    if STORES == 1:
        tl.store(to_ptr, found)


def _run(numbers: torch.Tensor, copies: Sequence[tuple[int, int, dict[str, int]]]) -> None:
    """Copies from one number to another."""
    for source, target, changes in copies:
        constants = {"LOADS": 1, "STORES": 1, "LETS": 0, "WAITS": 1, **changes}
        launch = Launch(_copy_kernel, constants, launch_pdl=constants.pop("PDL", 1) == 1)
        launch((1, 1, 1), (numbers[source:], numbers[target:]))


AHEAD: Final = {"LOADS": 0}
BEHIND: Final = {"LETS": 1}
NOTHING: Final = {"LOADS": 2, "STORES": 2, "WAITS": 0}
READS: Final = "_copy_kernel loads ahead of its wait what _copy_kernel writes"


@pytest.mark.parametrize(
    ("copies", "faults"),
    [
        ([(0, 1, {}), (1, 2, {})], []),
        ([(0, 1, {}), (3, 2, AHEAD)], []),
        ([(0, 1, {}), (1, 2, AHEAD)], [READS]),
        ([(0, 1, BEHIND), (1, 2, AHEAD)], [READS]),
        ([(0, 1, {"LETS": 2}), (1, 2, AHEAD)], []),
        ([(0, 1, {}), (1, 2, {**AHEAD, "PDL": 0, "WAITS": 0})], []),
        ([(0, 1, {}), (3, 4, {}), (1, 2, AHEAD)], [READS]),
        ([(0, 1, {}), (3, 4, BEHIND), (1, 2, AHEAD)], []),
        ([(0, 1, BEHIND), (3, 4, {}), (1, 2, AHEAD)], [READS]),
        ([(0, 1, {"STORES": 0})], ["_copy_kernel stores ahead of its wait"]),
        ([(0, 1, {}), (3, 4, NOTHING)], ["_copy_kernel never waits"]),
        ([(0, 1, {"STORES": 2}), (3, 4, NOTHING)], []),
    ],
)
def test_what_relies_on_too_much_is_found(
    copies: Sequence[tuple[int, int, dict[str, int]]], faults: list[str], watch: Watch
) -> None:
    """A kernel that relies on the kernel ahead is found, and one that relies on earlier kernels if
    none between waits before it lets others begin.
    """
    _run(torch.zeros(8), copies)
    assert watch.faults == faults


@pytest.mark.filterwarnings("ignore:invalid value|overflow:RuntimeWarning")  # of padding
@pytest.mark.parametrize(
    ("name", "tiles"), each_once(["padding", "beside prompts"], [FEW_ROW_TILES, MANY_ROW_TILES])
)
def test_verified_rows_wait(name: str, tiles: RowTiles, watch: Watch) -> None:
    """Two layers, one behind the other."""
    spans = STEPS[name]
    rows = drawn_rows(sum(span.length for span in spans), 5, sizes=ONE_KEY)
    of = begun(layer(NUM_SLOTS, sizes=ONE_KEY, most_rows=7))
    for _ in range(2):
        given = of.weights, EPS, of.state, of.ring, *planned(spans, CPU)
        verified.verify(*rows, *given, ONE_KEY, tiles)
    assert {"_advance_kernel", "_norm_kernel"} <= watch.early
    assert watch.faults == []


@pytest.mark.filterwarnings("ignore:invalid value|overflow:RuntimeWarning")  # of padding
@pytest.mark.parametrize("tiles", [delta.MANY_TILES, delta.SOME_TILES])
def test_decodes_of_a_hybrid_wait(tiles: Any, watch: Watch) -> None:
    """Kernels of a hybrid's decodes wait, for decodes of one row each beside padding and a
    prompt.
    """
    spans = [RowSpan(6, 1, 3), RowSpan(-1, 1, 7), RowSpan(0, 1, 0), RowSpan(9, 70, 1)]
    rows, of = drawn_rows(73, 5, sizes=ONE_KEY), begun(layer(NUM_SLOTS, sizes=ONE_KEY))
    plan, out = plan_spans(spans, CPU), torch.empty(73, ONE_KEY.value_columns)
    for _ in range(2):
        delta.decode(*rows, of.weights, EPS, of.state, plan, ONE_KEY, out, tiles)
        delta.prompts(*rows, of.weights, EPS, of.state, plan, ONE_KEY, out)
    assert len(watch.early) == 5
    assert watch.faults == []


@pytest.mark.parametrize("num_rows", [1, 5])
def test_mixtures_of_few_rows_wait(num_rows: int, watch: Watch) -> None:
    """Two layers, one behind the other, with a shared expert: what is down reads the experts ahead
    of its wait.
    """
    routing, generator = Routing(6, 2), torch.Generator().manual_seed(1)
    router_rows, up, down, own_up, own_down = (
        torch.randn(*size, generator=generator)
        for size in ((7, 48), (6 * 40, 48), (6 * 48, 20), (40, 48), (48, 20))
    )
    hidden = torch.randn(num_rows, 48, generator=generator)
    for _ in range(2):
        weights = ExpertWeights(router_rows)
        normed, routed = router.norm_route(hidden, router_rows[0], 1e-6, weights, routing)
        shared = few.SharedExpert(own_up, own_down, routed.shared)
        gated = few.gate_up(normed, up, None, routed, 20, Activation(), shared=shared)
        hidden = few.down(gated, down, None, routed, hidden, shared=shared)
    assert {"_route_kernel", "_gate_up_kernel", "_down_kernel"} <= watch.early
    assert watch.faults == []


@pytest.mark.parametrize("num_rows", [2, 5])
def test_rows_of_latents_wait(num_rows: int, watch: Watch) -> None:
    """Two layers, one behind the other: what one row caches, and its parts, are read behind it."""
    case = make_case(DECODES[-num_rows:], ODD)
    plan = case.paged_plan()
    heads = case.queries.view(num_rows, ODD.heads, -1)
    for _ in range(2):
        given = case.weights, case.cos_sin, case.cache, plan, ODD.scale
        out = latents.attend_singles(heads, case.rows, *given, 4)
        heads = (out.repeat(1, 2)[:, : heads[0].numel()]).view(heads.shape).contiguous()
    early = {"absorb_kernel", "rows_kernel"}
    early |= {"merge_values_kernel"} if num_rows == 2 else {"merge_kernel", "product_kernel"}
    assert early <= watch.early
    assert watch.faults == []


def _slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("family", "changes", "early"),
    [
        ("qwen3_5", {}, {"_fused_kernel", "_sigmoid_mul_kernel", "_rms_norm_kernel"}),
        _slow("qwen3_5", {"quantization": "fp8"}, {"_quantize_rows_kernel"}),
        _slow("qwen2", {"quantization": "int4"}, {"_gemv_kernel", "_skinny_kernel"}),
        _slow("gemma3", {}, {"_write_kernel"}),
    ],
)
def test_all_kernels_of_a_step_wait(
    tmp_path: Path, family: str, changes: dict[str, Any], early: set[str]
) -> None:
    """Prompts, decodes and both, and what is drawn. In float16, which the interpreter computes; a
    hybrid in float32, because half-precision rounds differently on processors of different makes.
    """
    sizes = {"kv_tokens": 512, "block_size": 16, "token_budget": 128, **changes}
    if family == "qwen3_5":
        sizes["snapshots"] = 4
    dtype = "float32" if family == "qwen3_5" and not changes else "float16"
    host = load_tiny(write_family(tmp_path, family), dtype=dtype, **sizes)
    answers = []
    for on_card in (False, True):
        if on_card:
            with early_starts() as watch:
                steps = DeviceSteps(host.model, host.cache, host.facts, run_again)
                runner = ModelRunner(host.model, host.cache, host.facts, host.model_dir, steps)
                answers.append(_answers(Drive(runner, looks_ahead=True)))
        else:
            answers.append(_answers(Drive(fresh_runner(host))))
    assert early <= watch.early
    assert watch.faults == []
    if changes.get("quantization") != "fp8":  # the interpreter loses a carry
        assert answers[0] == answers[1]


def _answers(drive: Drive) -> list[list[int]]:
    for length in (5, 19):
        drive.submit(list(range(3, 3 + length)), FEW)
    drive.finish()
    return [answer.outputs for answer in drive.answers.values()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value|overflow:RuntimeWarning")  # of padding
def test_all_kernels_of_drafts_wait(tmp_path: Path) -> None:
    """All kernels that draft, and those that verify drafts of a hybrid, wait."""
    path = write_family(tmp_path / "model", "qwen3_5")
    add_gated_head(path)
    chosen = SpeculationConfig(drafter=str(path), depth=2)
    sizes = {"kv_tokens": 512, "block_size": 16, "token_budget": 128, "snapshots": 4}
    host = load_tiny(path, dtype="float16", speculation=chosen, **sizes)
    assert host.drafter is not None
    watch = _drafting(host, host.drafter)
    assert {"_advance_kernel", "_decode_kernel"} <= watch.early
    assert watch.faults == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value|overflow:RuntimeWarning")  # of padding
@pytest.mark.parametrize("name", ["dflash", "dflash2", "mtp", "eagle3"])
def test_all_kernels_of_a_drafter_wait(tmp_path: Path, name: str) -> None:
    """All kernels of a drafter wait, beside a dense model."""
    path = write_tiny_model(tmp_path / "model", num_hidden_layers=5)
    host = load_tiny(path, dtype="float16", kv_tokens=512, block_size=16, token_budget=128)
    drafter, _, _ = made(name, host.model, tmp_path / "drafter")
    drafter.take_cache(host.cache.num_blocks + 1, 16)
    watch = _drafting(host, drafter)
    assert "_skinny_kernel" in watch.early
    assert watch.faults == []


def _drafting(host: ModelRunner, drafter: Drafter) -> Watch:
    """Two rounds; behind the first its draft passes are those that are captured."""
    given = host.model, host.cache, host.facts
    with early_starts() as watch:
        steps = DeviceSteps(*given, run_again, drafter=drafter, verifies=True)
        runner = ModelRunner(*given, host.model_dir, steps)
        drive = Drive(runner, looks_ahead=True, proposer=CardDrafts(2))
        for _ in range(2):
            _answers(drive)
            while runner.prepare(pending_only=True):
                pass
    return watch
