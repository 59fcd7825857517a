"""4-bit products in CUDA C++ from Ampere on: the kernel's source on an emulated card, how products
are cut up, and on a card its answers.
"""

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Final

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.cuda.source import architecture
from kernels.int4 import Int4Weight, dequantise
from kernels.linear import int4, int4_ampere, int4_check, int4_verdict
from kernels.linear.config import Int4Ampere
from kernels.linear.epilogue import NOTHING, Epilogue, EpilogueForm
from kernels.linear.int4_ampere import CardLimits, chosen, configs_on, constants_of, used_bytes
from kernels.linear.int4_check import CheckedProduct
from kernels.linear.int4_verdict import CandidateKernel
from kernels.recorder import record_launches
from tests.kernels import emulated_ampere
from tests.kernels.cubins import resources

KIB: Final = 1024
CARDS: Final = {
    "A100": CardLimits(108, 163 * KIB),
    "3090": CardLimits(82, 99 * KIB),
    "3060": CardLimits(28, 99 * KIB),
    "4090": CardLimits(128, 99 * KIB),
    "5090": CardLimits(170, 99 * KIB),
    "GB10": CardLimits(48, 99 * KIB),
    "H200": CardLimits(132, 227 * KIB),
}
ARCHES: Final = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
"""With KiB of shared memory."""

SHAPES: Final = [
    (6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (5120, 17408), (34816, 5120),
    (1024, 1024), (8, 32), (151936, 4096),
]  # fmt: skip

FEW: Final = Int4Ampere(warps_m=1, m_tiles=2, teams=4, eights=1, stages=3)
PRODUCTS: Final = (
    CheckedProduct(1, 100, 640, 128, "zeros norm", config=FEW),
    CheckedProduct(2, 3, 32, 32, "bias", config=FEW),  # a step of 32 columns, three teams idle
    CheckedProduct(3, 70, 1120, 32, "zeros residual bias", config=FEW._replace(splits=2)),
    CheckedProduct(
        8,
        70,
        1024,
        64,
        "zeros norm swiglu",
        config=Int4Ampere(warps_m=1, m_tiles=2, teams=8, eights=1, stages=3, splits=3),
    ),
    CheckedProduct(
        2,
        75,
        640,
        128,
        "zeros norm",
        config=Int4Ampere(warps_m=1, m_tiles=1, teams=2, eights=1, stages=4, columns=256, splits=2),
    ),
    CheckedProduct(
        11,
        130,
        1152,
        128,
        "norm",
        config=Int4Ampere(warps_m=2, m_tiles=2, teams=2, eights=2, stages=3, splits=2),
    ),
    CheckedProduct(
        30,
        130,
        1152,
        64,
        "swiglu gelu other_scales",
        config=Int4Ampere(warps_m=4, m_tiles=1, teams=2, eights=4, stages=3),
    ),
    CheckedProduct(
        70,
        130,
        608,
        32,
        "zeros residual",
        config=Int4Ampere(warps_m=4, m_tiles=1, teams=2, eights=8, stages=2),
    ),
    CheckedProduct(
        64,
        130,
        640,
        128,
        "zeros",
        config=Int4Ampere(warps_m=8, m_tiles=1, teams=1, eights=8, stages=3, splits=2),
    ),
)
"""Sizes that nothing divides, each tile and each part."""

emulated = pytest.mark.skipif(emulated_ampere.COMPILER is None, reason="needs g++")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the emulated kernel's libraries."""
    return tmp_path_factory.mktemp("ampere")


@emulated
@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_its_source_multiplies_right(case: CheckedProduct, room: Path) -> None:
    """The source multiplies right with copies as early and as late as they may be, and with threads
    from both ends: the same bits.
    """
    assert isinstance(case.config, Int4Ampere)
    dtype = torch.float16 if case.num_rows in (2, 30) else torch.bfloat16
    inputs = int4_check.drawn(case, dtype)
    answers = [
        emulated_ampere.product(
            inputs.x, inputs.weight, case.config, room, inputs.epilogue, is_eager=is_eager,
            is_back=is_back,
        )
        for is_eager, is_back in ((False, False), (True, True), (False, True))
    ]  # fmt: skip
    assert int4_check.fault_of(answers[0], int4_check.exact(case, inputs)) == ""
    assert all(torch.equal(answer, answers[0]) for answer in answers)


@emulated
def test_rows_do_not_depend_on_their_neighbours(room: Path) -> None:
    """Bit for bit, by the tiles of `invariant`, however many eights of rows they have."""
    case = CheckedProduct(30, 70, 640, 128, "zeros")
    x, weight, _ = int4_check.drawn(case, torch.bfloat16)
    answers = []
    for rows in (x, x[3:4], x[3:20]):
        config = chosen(len(rows), 70, 640, CARDS["4090"], invariant=True)
        answers.append(
            emulated_ampere.product(
                rows.contiguous(), weight, config, room, is_eager=False, is_back=False
            )
        )
    assert torch.equal(answers[1], answers[0][3:4])
    assert torch.equal(answers[2], answers[0][3:20])


MISTAKES: Final = [
    ("wait_groups<STAGES - 2>();", "wait_groups<STAGES - 1>();"),
    ("meet<TEAM>(team);", ""),
    ("i + STAGES - 1 < own_steps", "i + STAGES < own_steps"),
    ("if (NORM && thread < X_CHUNKS)", "if (NORM && thread < X_CHUNKS - 1)"),
    ("((chunk ^ (row / (128 / LINE) % CHUNKS)) << 4)", "(chunk << 4)"),
    ("const u32 at = is_inside ? own / 2 : 0;", "const u32 at = own / 2;"),
    ("wait_groups<0>();\n  __syncthreads();", ""),
    ("== splits - 1", "== splits"),
    ("if (is_last) arrived[block] = 0;", ""),
    ("own_row + 16 * m", "own_row"),
]


@emulated
@pytest.mark.parametrize(("right", "wrong"), MISTAKES)
def test_an_emulated_card_sees_mistakes(
    right: str, wrong: str, room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An emulated card sees mistakes in how the kernel waits, copies, and finds its places: a
    fault, or a wrong answer.
    """
    text = int4_ampere.int4_ampere.path.read_text()
    assert right in text
    (tmp_path / "int4_ampere.cu").write_text(text.replace(right, wrong))
    monkeypatch.setattr(emulated_ampere, "_SOURCES", tmp_path)
    monkeypatch.setattr(emulated_ampere, "_built", {})
    case = CheckedProduct(11, 50, 1184, 32, "zeros norm residual")
    inputs = int4_check.drawn(case, torch.bfloat16)
    faults = []
    for is_eager, is_back in ((False, False), (True, True)):
        if any(faults):
            break
        try:
            answer = emulated_ampere.product(
                inputs.x,
                inputs.weight,
                Int4Ampere(warps_m=2, m_tiles=2, teams=2, eights=2, stages=3, splits=2),
                tmp_path,
                inputs.epilogue,
                is_eager=is_eager,
                is_back=is_back,
            )
        except AssertionError as error:
            faults.append(str(error))
        else:
            faults.append(int4_check.fault_of(answer, int4_check.exact(case, inputs)))
    assert any(faults)


@pytest.mark.parametrize("name", CARDS)
@pytest.mark.parametrize("group", [32, 64, 128])
def test_every_program_fits_the_card(name: str, group: int) -> None:
    """Shared memory, in which the sums in float32 lie at last; counters for all tiles that are
    shared; and all tiles are among those that are checked.
    """
    card = CARDS[name]
    for num_rows, shape in product((1, 2, 8, 9, 16, 17, 33, 64, 65, 256), SHAPES):
        assert int4_ampere.fits(shape[1], group, card.bytes)
        for invariant in (False, True):
            config = chosen(num_rows, *shape, card, group=group, invariant=invariant)
            rows = 8 * config.eights
            assert rows >= min(num_rows, 64)
            assert used_bytes(config, shape[1], group) <= card.bytes
            tiles = int4_ampere.tiles_of(config, num_rows, shape[0], swiglu=False)
            assert config.splits == 1 or tiles < 16384
            assert config._replace(splits=1) in configs_on(card.bytes)
    for config in configs_on(card.bytes):
        rows = 8 * config.eights
        sums = 4 * rows * (config.teams * (config.tile + 4) + config.teams * config.warps_m)
        assert sums <= used_bytes(config, 0, group)
        warps = config.warps_m * config.teams
        assert 4 <= warps <= 32


def test_what_is_compiled_does_not_depend_on_multiprocessors() -> None:
    """What is compiled does not depend on the number of multiprocessors, so that a dry run, which
    does not know it, finds what a start needs.
    """
    for num_rows, shape in product((1, 9, 30, 64, 200), SHAPES):
        found = {
            chosen(num_rows, *shape, CardLimits(count, 99 * KIB))._replace(splits=1)
            for count in (20, 48, 82, 128, 170)
        }
        assert len(found) == 1


def test_few_weight_rows_are_shared() -> None:
    """Few weight rows are shared by as many programs as run at once; each program has some steps of
    the columns.
    """
    card = CARDS["4090"]
    assert chosen(1, 1024, 4096, card).splits == 2
    assert chosen(1, 1024, 1024, card).splits == 1
    assert chosen(1, 24576, 4096, card).splits == 1
    assert chosen(64, 4096, 12288, card).splits == 2
    wanted = chosen(1, 5120, 4096, card, invariant=True).splits
    assert all(
        chosen(rows, 5120, 4096, card, invariant=True).splits == wanted for rows in (7, 20, 200)
    )


def test_scales_that_do_not_fit_are_left_to_triton() -> None:
    """Products whose scales do not fit into a program's shared memory are left to Triton."""
    assert not int4_ampere.fits(2**19, 32, 99 * KIB)
    with pytest.raises(ValueError, match="columns in groups"):
        chosen(1, 4096, 2**19, CARDS["3090"], group=32)


@pytest.mark.parametrize(
    ("capability", "kernel"),
    [
        ((7, 5), None),
        *(((8, minor), CandidateKernel.AMPERE) for minor in (0, 6, 7, 9)),
        ((9, 0), CandidateKernel.TILES),
        *((capability, CandidateKernel.AMPERE) for capability in ((10, 0), (12, 0), (12, 1))),
    ],
)
def test_a_card_has_one_candidate(
    capability: tuple[int, int], kernel: CandidateKernel | None
) -> None:
    """A card has one candidate: on Hopper the kernel that only Hopper runs."""
    assert int4_verdict.candidate(capability) is kernel


def test_the_check_takes_every_tile_and_every_part() -> None:
    """All that the choice chooses."""
    for card in CARDS.values():
        cases = int4_check.ampere_products(configs_on(card.bytes))
        configs = [case.config for case in cases]
        assert all(isinstance(config, Int4Ampere) for config in configs)
        bare = {config._replace(splits=1) for config in configs if isinstance(config, Int4Ampere)}
        assert bare == set(configs_on(card.bytes))
        assert {case.group for case in cases} == {32, 64, 128}
        assert any(case.depth % 64 for case in cases)
        parts = {part for case in cases for part in case.parts.split()}
        assert parts == {"zeros", "norm", "swiglu", "gelu", "residual", "bias", "other_scales"}
        assert any(case.num_times > 1 and case.num_splits > 1 for case in cases)


def test_on_a_pretended_device_its_compilation_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a pretended device the compilation is recorded for that card, once for matrices of other
    sizes.
    """
    monkeypatch.setattr(int4_ampere, "capability", lambda _: (8, 6))
    x = torch.empty(5, 256, dtype=torch.bfloat16, device="meta")
    meta = torch.device("meta")
    with record_launches() as recorded:
        for num_rows in (48, 96):
            weight = _drawn(num_rows, 256, 128).to(meta)
            assert int4_ampere.product(x, weight, FEW, Epilogue(swiglu=True)).shape == (
                5,
                num_rows // 2,
            )
        assert int4_ampere.product(x, weight, FEW._replace(splits=2)).shape == (5, 96)
    assert [kernel.name for kernel in recorded.values()] == ["int4_ampere", "int4_ampere"]
    assert all('"ARCH":86' in kernel.specialisation for kernel in recorded.values())


def test_the_compiler_is_asked_for_the_card() -> None:
    """Kernels of Hopper alone name none."""
    assert architecture(constants_of(FEW, 128, 121)) == "--gpu-architecture=sm_121"
    assert architecture({"NT": 1}) == "--gpu-architecture=sm_90a"


def _drawn(num_rows: int, depth: int, group: int) -> Int4Weight:
    case = CheckedProduct(1, num_rows, depth, group, "zeros")
    return int4_check.drawn(case, torch.bfloat16).weight


@pytest.mark.gpu
@pytest.mark.skipif(find_spec("cuda") is None, reason="needs torch for CUDA")
@pytest.mark.parametrize("arch", ARCHES)
def test_it_compiles_for_a_card_without_spills(arch: int, tmp_path: Path) -> None:
    """All tiles of such a card, with the norm or a residual, in both dtypes."""
    parts = (False, 128, False), (False, 32, True), (True, 32, False)
    for config, (is_half, group, swiglu) in product(configs_on(ARCHES[arch] * KIB), parts):
        constants = constants_of(
            config, group, arch, is_half=is_half, is_scale_half=is_half,
            epilogue=EpilogueForm(
                has_norm=swiglu and config.eights <= 2, has_residual=not swiglu, swiglu=swiglu
            ),
        )  # fmt: skip
        used = resources(int4_ampere.int4_ampere.cubin(constants), tmp_path)
        assert (used["STACK"], used["LOCAL"]) == (0, 0), constants
        assert used["REG"] * 32 * config.warps_m * config.teams <= 65536


_HAS_CARD: Final = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
EPS: Final = 1e-6


def _configs() -> Iterator[Int4Ampere]:
    """Tiles for small and for large cards, alone and by programs that share columns."""
    configs = dict.fromkeys((*configs_on(99 * KIB), *configs_on(227 * KIB)))
    for config, splits in product(configs, (1, 3)):
        yield config._replace(splits=splits)


def _error(out: Tensor, exact: Tensor) -> float:
    return float((out.double() - exact).norm() / exact.norm())


@pytest.mark.usefixtures("poisoned")
@pytest.mark.gpu
@pytest.mark.skipif(
    not _HAS_CARD or find_spec("cuda") is None, reason="needs a card from Ampere on"
)
class TestOnCard:
    """Parity with float64; each answer twice. Hopper runs it too."""

    @pytest.fixture
    def served(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The choice takes it on every card, if it is right there."""
        monkeypatch.setattr(int4_verdict, "candidate_on", lambda _: CandidateKernel.AMPERE)
        monkeypatch.setattr(int4_verdict, "_verdicts", {})
        verdict = int4_verdict.check(torch.device("cuda"), torch.bfloat16)
        print(verdict.text)
        assert verdict.serves, verdict.text

    @pytest.mark.parametrize("config", [*_configs()], ids=str)
    @pytest.mark.parametrize("num_rows", [1, 2, 7, 16, 61, 130])
    def test_products(self, config: Int4Ampere, num_rows: int) -> None:
        """Last tiles, steps and groups that are not full; a single weight row; few columns.

        Rounding the answer makes errors of 1.7e-3 in many numbers, up to 4e-3 in single ones.
        """
        for num_weight_rows, depth, group in ((1, 32, 32), (389, 32 * 39, 32), (1024, 2432, 128)):
            weight = _drawn(num_weight_rows, depth, group).to(torch.device("cuda"))
            if group == 128:
                weight = replace(weight, zeros=None)
            x = torch.randn(num_rows, depth, device="cuda").bfloat16()
            exact = _exact(x, weight)
            most = 4e-3 if exact.numel() > 100 else 4e-2
            out = int4_ampere.product(x, weight, config)
            assert _error(out, exact) < most
            assert torch.equal(out, int4_ampere.product(x, weight, config))
            residual = torch.randn_like(exact).bfloat16()
            bias = torch.randn(num_weight_rows, device="cuda").bfloat16()
            out = int4_ampere.product(x, weight, config, Epilogue(residual=residual, bias=bias))
            assert _error(out, exact + residual.double() + bias.double()) < most

    @pytest.mark.parametrize("config", [*_configs()], ids=str)
    @pytest.mark.parametrize("is_gelu", [False, True])
    def test_norm_and_swiglu(self, config: Int4Ampere, is_gelu: bool) -> None:
        """A last tile behind whose gates the ups begin; the norm within the product."""
        for num_rows, inner, depth, most in ((1, 8, 256, 2e-2), (11, 389, 1888, 5e-3)):
            weight = _drawn(2 * inner, depth, 32).to(torch.device("cuda"))
            x = 30 * torch.randn(num_rows, depth, device="cuda").bfloat16()
            norm = (torch.rand(depth, device="cuda") + 0.5).bfloat16()
            rows = x.double() / (x.double().square().mean(-1, keepdim=True) + EPS).sqrt()
            exact = _exact(rows * norm.double(), weight)
            normed = Epilogue(norm=norm, eps=EPS)
            if config.eights > 2:  # the norm of so many rows is a kernel of its own
                normed, x = NOTHING, (rows * norm.double()).bfloat16()
            assert _error(int4_ampere.product(x, weight, config, normed), exact) < most
            gate, up = exact.chunk(2, dim=1)
            gated = functional.gelu(gate, approximate="tanh") if is_gelu else functional.silu(gate)
            epilogue = normed._replace(swiglu=True, is_gelu=is_gelu)
            out = int4_ampere.product(x, weight, config, epilogue)
            mean = (out.double() - gated * up).square().mean().sqrt()
            assert float(mean / exact.square().mean()) < most

    def test_float16(self) -> None:
        """x, scales, and the parts around; and either alone."""
        weight = _drawn(200, 640, 128).to(torch.device("cuda"))
        half = replace(weight, scales=weight.scales.half())
        x = torch.randn(9, 640, device="cuda").half()
        bias = torch.randn(200, device="cuda").half()
        config = Int4Ampere(warps_m=2, m_tiles=2, teams=2, eights=2, stages=3)
        out = int4_ampere.product(x, half, config, Epilogue(bias=bias))
        assert _error(out, _exact(x.double(), half) + bias.double()) < 1e-3
        assert _error(int4_ampere.product(x, weight, config), _exact(x.double(), weight)) < 1e-3
        mixed = int4_ampere.product(x.bfloat16(), half, config)
        assert _error(mixed, _exact(x.bfloat16().double(), half)) < 4e-3

    @pytest.mark.usefixtures("served")
    @pytest.mark.parametrize("num_rows", [1, 3, 12, 40, 256])
    def test_the_choice(self, num_rows: int) -> None:
        """The choice for an 8B's down projection; rows alone give the same bits where that is asked
        for.
        """
        weight = _drawn(4096, 12288, 128).to(torch.device("cuda"))
        x = torch.randn(num_rows, 12288, device="cuda").bfloat16()
        residual = torch.randn(num_rows, 4096, device="cuda").bfloat16()
        exact = _exact(x, weight)
        out = int4.product(x, weight, Epilogue(residual=residual.clone()))
        assert _error(out, exact + residual.double()) < 4e-3
        whole = int4.product(x, weight, invariant=True)
        assert _error(whole, exact) < 4e-3
        alone = int4.product(x[-1:].contiguous(), weight, invariant=True)
        assert torch.equal(alone, whole[-1:])

    @pytest.mark.usefixtures("served")
    @pytest.mark.parametrize("splits", [1, 2])
    def test_products_follow_each_other(self, splits: int) -> None:
        """Products follow each other in a graph: each reads what the one before wrote, though it
        may begin before that has ended, and shares its memory for sums.
        """
        weight = _drawn(2048, 2048, 128).to(torch.device("cuda"))
        x = torch.randn(4, 2048, device="cuda").bfloat16()
        norm = torch.ones(2048, device="cuda").bfloat16()
        config = Int4Ampere(warps_m=1, m_tiles=2, teams=4, eights=1, stages=3, splits=splits)
        expected = x.double()
        for _ in range(20):
            rows = expected / (expected.square().mean(-1, keepdim=True) + EPS).sqrt()
            expected = _exact(rows.bfloat16(), weight).bfloat16().double()

        def chained() -> Tensor:
            out = x
            for _ in range(20):
                out = int4_ampere.product(out, weight, config, Epilogue(norm=norm, eps=EPS))
            return out

        chained()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = chained()
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
        assert _error(out, expected) < 3e-2


def _exact(x: Tensor, weight: Int4Weight) -> Tensor:
    return x.double() @ dequantise(weight, torch.float32).double().T
