"""4-bit products in CUDA C++: what is asked of it on a CPU, and on a Hopper card its answers."""

from dataclasses import replace
from importlib.util import find_spec
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.int4 import Int4Weight, dequantise, packed
from kernels.linear import int4, int4_choose, int4_tiles, int4_verdict
from kernels.linear.config import Int4Tiles
from kernels.linear.epilogue import Epilogue, EpilogueForm
from kernels.recorder import record_launches

CONFIGS = [
    Int4Tiles(warps_m=2, warps_k=2, m_tiles=2, eights=1, splits=1, stages=6, blocks=2),
    Int4Tiles(warps_m=2, warps_k=2, m_tiles=2, eights=2, splits=4, stages=5, blocks=2),
    Int4Tiles(warps_m=4, warps_k=1, m_tiles=1, eights=1, splits=2, stages=2, blocks=3),
    Int4Tiles(warps_m=2, warps_k=4, m_tiles=1, eights=4, splits=3, stages=3, blocks=1),
    Int4Tiles(warps_m=8, warps_k=1, m_tiles=1, eights=8, splits=1, stages=4, blocks=1),
    Int4Tiles(warps_m=4, warps_k=2, m_tiles=2, eights=8, splits=2, stages=3, blocks=1),
    Int4Tiles(warps_m=4, warps_k=1, m_tiles=2, eights=2, splits=8, stages=4, blocks=1),
    Int4Tiles(warps_m=4, warps_k=2, m_tiles=2, eights=8, splits=1, stages=4, blocks=1, early=True),
    Int4Tiles(warps_m=1, warps_k=4, m_tiles=2, eights=1, splits=1, stages=12, blocks=2, turns=4),
    Int4Tiles(warps_m=1, warps_k=4, m_tiles=3, eights=1, splits=1, stages=9, blocks=2, turns=3),
    Int4Tiles(warps_m=2, warps_k=2, m_tiles=2, eights=2, splits=2, stages=6, blocks=1, turns=2),
    Int4Tiles(warps_m=3, warps_k=2, m_tiles=3, eights=2, splits=1, stages=3, blocks=2, early=True),
    Int4Tiles(
        warps_m=1,
        warps_k=4,
        m_tiles=3,
        eights=1,
        splits=1,
        stages=6,
        blocks=2,
        turns=2,
        wide=2,
        lone=True,
    ),
    Int4Tiles(
        warps_m=1,
        warps_k=8,
        m_tiles=2,
        eights=1,
        splits=2,
        stages=3,
        blocks=2,
        wide=4,
        lone=True,
    ),
    Int4Tiles(warps_m=2, warps_k=4, m_tiles=2, eights=2, splits=2, stages=3, blocks=2, wide=2),
]
GROUPED = [
    Int4Tiles(
        warps_m=warps_m,
        warps_k=warps_k,
        m_tiles=1,
        eights=eights,
        splits=splits,
        stages=4,
        blocks=1,
        early=True,
        wgmma=True,
    )
    for warps_m, warps_k, eights, splits in ((12, 1, 8, 1), (8, 1, 16, 3), (4, 2, 16, 2))
]
EPS = 1e-6

_IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _IS_HOPPER or find_spec("cuda") is None, reason="needs a Hopper card"),
]


@pytest.mark.parametrize("num_rows", [1, 8, 9, 17, 64, 65, 256])
@pytest.mark.parametrize(
    "shape", [(6144, 4096), (24576, 4096), (4096, 12288), (5120, 17408), (34816, 5120), (8, 64)]
)
@pytest.mark.parametrize("group", [64, 128])
def test_every_program_fits_the_card(num_rows: int, shape: tuple[int, int], group: int) -> None:
    """Shared memory, in whose stages the sums in float32 lie at last."""
    chosen = int4_choose.chosen(num_rows, *shape)
    assert 8 * chosen.eights >= min(num_rows, 64)
    if shape[1] // group > 256:
        return
    grouped = int4_choose.chosen(num_rows, *shape, group=group, has_wgmma=True)
    assert int4_tiles.fits(grouped, shape[1], group)
    if grouped.wgmma:  # the norm of so many rows is a kernel of its own
        macros = int4_tiles.constants_of(grouped, shape[1], group)
        assert (macros["WGMMA"], macros["SPLITS"] <= 4, num_rows > 16) == (1, True, True)
        assert int4_tiles.shared_bytes(macros) <= 227 * 1024
        assert int4_tiles.constants_of(grouped, shape[1], group, is_half=True)["WGMMA"] == 0
    invariant = int4_choose.chosen(num_rows, *shape, invariant=True)
    assert invariant.splits == int4_choose.chosen(1, *shape, invariant=True).splits
    for config in (chosen, invariant, *CONFIGS):
        macros = int4_tiles.constants_of(
            config, shape[1], group, epilogue=EpilogueForm(has_norm=True)
        )
        assert macros["STAGES"] >= 2
        assert int4_tiles.shared_bytes(macros) <= 227 * 1024
        rows = 8 * config.eights
        assert macros["STAGES"] % config.turns == 0
        staged = 4 * config.parts * rows * (config.tile + 5)
        assert staged <= macros["STAGES"] * (config.tile * 128 + rows * 512)


def test_what_does_not_fit_is_refused() -> None:
    """Scales of a whole row lie in shared memory."""
    with pytest.raises(ValueError, match="columns in groups"):
        int4_tiles.constants_of(
            Int4Tiles(warps_m=8, warps_k=1, m_tiles=1, eights=8, splits=1, stages=4, blocks=1),
            2**16,
            32,
        )
    with pytest.raises(ValueError, match="groups of 512 columns"):
        int4_tiles.constants_of(CONFIGS[0], 2**12, 512)


def test_on_a_pretended_device_its_compilation_is_recorded() -> None:
    """On a pretended device the compilation is recorded, so that it is done ahead, once for the
    same constants.
    """
    x = torch.empty(5, 256, dtype=torch.bfloat16, device="meta")
    weight = _drawn(48, 256, 128, zeros=True).to(torch.device("meta"))
    with record_launches() as recorded:
        for _ in range(2):
            assert int4_tiles.product(x, weight, CONFIGS[0], Epilogue(swiglu=True)).shape == (5, 24)
        assert int4_tiles.product(x, weight, CONFIGS[0]).shape == (5, 48)
    assert [kernel.name for kernel in recorded.values()] == ["int4_tiles", "int4_tiles"]
    assert all(kernel.module == "kernels.linear.int4_tiles" for kernel in recorded.values())


def _drawn(num_rows: int, depth: int, group: int, *, zeros: bool) -> Int4Weight:
    generator = torch.Generator().manual_seed(depth + num_rows)
    values = torch.randint(0, 16, (num_rows, depth), generator=generator)
    shape = num_rows, depth // group
    scales = (torch.rand(shape, generator=generator) + 0.5) * depth**-0.5 / 4
    found = torch.randint(0, 17, shape, generator=generator).to(torch.uint8) if zeros else None
    return Int4Weight(packed(values, group), scales.bfloat16(), found)


def _exact(x: Tensor, weight: Int4Weight) -> Tensor:
    return x.double() @ dequantise(weight, torch.float32).double().T


def _normed(x: Tensor, norm: Tensor) -> Tensor:
    rows = x.double()
    return rows / (rows.square().mean(-1, keepdim=True) + EPS).sqrt() * norm.double()


def _gated_error(out: Tensor, expected: Tensor, exact: Tensor) -> float:
    """Per product of a gate and an up of the usual size: eight of them may all be small."""
    mean = (out.double() - expected).square().mean().sqrt()
    return float(mean / exact.square().mean())


def _error(out: Tensor, expected: Tensor) -> float:
    return float((out.double() - expected).norm() / expected.norm())


@pytest.mark.usefixtures("poisoned")
class TestOnHopper:
    """Parity with float64; each answer twice."""

    pytestmark = on_hopper

    @pytest.fixture
    def checked(self) -> None:
        """The choice serves what was found right."""
        verdict = int4_verdict.check(torch.device("cuda"), torch.bfloat16)
        assert verdict.serves, verdict.text

    @pytest.mark.parametrize(
        ("config", "num_rows"),
        [*product(CONFIGS, [1, 7, 16, 61, 130]), *product(GROUPED, [1, 61, 130])],
    )
    def test_products(self, config: Int4Tiles, num_rows: int) -> None:
        """A last tile that is not full, rows that are no multiple of eight, few and odd steps.

        Rounding a weight, where that is `early`, and the answer makes errors of 2.2e-3 in many
        numbers; in two thousand draws of three up to 2.4e-2, of 21 up to 4.1e-3.
        """
        shapes = (3, 64, 32), (389, 64 * 9, 64), (1024, 256 * 9, 128), (389, 1024 * 3, 128)
        for num_weight_rows, depth, group in shapes:
            weight = _drawn(num_weight_rows, depth, group, zeros=group != 64).to(
                torch.device("cuda")
            )
            x = torch.randn(num_rows, depth, device="cuda").bfloat16()
            exact = _exact(x, weight)
            most = 4e-3 if exact.numel() > 100 else 4e-2
            out = int4_tiles.product(x, weight, config)
            assert _error(out, exact) < most
            assert torch.equal(out, int4_tiles.product(x, weight, config))
            residual = torch.randn_like(exact).bfloat16()
            bias = torch.randn(num_weight_rows, device="cuda").bfloat16()
            out = int4_tiles.product(x, weight, config, Epilogue(residual=residual, bias=bias))
            assert _error(out, exact + residual.double() + bias.double()) < most

    @pytest.mark.parametrize("config", CONFIGS)
    @pytest.mark.parametrize("is_gelu", [False, True])
    def test_norm_and_swiglu(self, config: Int4Tiles, is_gelu: bool) -> None:
        """A last tile behind whose gates the ups begin; the norm within the product.

        Rounding x times its norm, the weight where that is `early`, and the answer, makes errors of
        3e-3 in many numbers; in a thousand draws of 16 up to 7.1e-3, and 1.6e-2 of 8 gated ones.
        """
        for num_rows, inner, depth, most in ((1, 8, 256, 2e-2), (11, 389, 256 * 7, 5e-3)):
            weight = _drawn(2 * inner, depth, 128, zeros=True).to(torch.device("cuda"))
            x = 30 * torch.randn(num_rows, depth, device="cuda").bfloat16()
            norm = (torch.rand(depth, device="cuda") + 0.5).bfloat16()
            exact = _exact(_normed(x, norm).float(), weight)
            normed = Epilogue(norm=norm, eps=EPS)
            assert _error(int4_tiles.product(x, weight, config, normed), exact) < most
            gate, up = exact.chunk(2, dim=1)
            gated = functional.gelu(gate, approximate="tanh") if is_gelu else functional.silu(gate)
            epilogue = normed._replace(swiglu=True, is_gelu=is_gelu)
            out = int4_tiles.product(x, weight, config, epilogue)
            assert _gated_error(out, gated * up, exact) < most

    def test_float16(self) -> None:
        """x, scales, and the parts around."""
        weight = _drawn(200, 640, 128, zeros=True).to(torch.device("cuda"))
        weight = replace(weight, scales=weight.scales.half())
        x = torch.randn(9, 640, device="cuda").half()
        bias = torch.randn(200, device="cuda").half()
        out = int4_tiles.product(x, weight, CONFIGS[1], Epilogue(bias=bias))
        assert _error(out, _exact(x, weight) + bias.double()) < 1e-3
        mixed = int4_tiles.product(x.bfloat16(), weight, CONFIGS[1])
        assert _error(mixed, _exact(x.bfloat16(), weight)) < 4e-3

    @pytest.mark.usefixtures("checked")
    @pytest.mark.parametrize("num_rows", [1, 3, 40, 256])
    def test_the_choice(self, num_rows: int) -> None:
        """The choice for an 8B's down projection, with an order of columns too."""
        weight = _drawn(4096, 12288, 128, zeros=True).to(torch.device("cuda"))
        x = torch.randn(num_rows, 12288, device="cuda").bfloat16()
        residual = torch.randn(num_rows, 4096, device="cuda").bfloat16()
        exact = _exact(x, weight)
        out = int4.product(x, weight, Epilogue(residual=residual.clone()))
        assert _error(out, exact + residual.double()) < 4e-3
        order = torch.randperm(12288, device="cuda")
        mixed = torch.empty_like(x)
        mixed[:, order] = x
        assert _error(int4.product(mixed, replace(weight, order=order)), exact) < 4e-3

    @pytest.mark.usefixtures("checked")
    def test_rows_do_not_depend_on_their_neighbours(self) -> None:
        """Bit for bit, where that is asked for."""
        weight = _drawn(640, 4096, 128, zeros=True).to(torch.device("cuda"))
        x = torch.randn(200, 4096, device="cuda").bfloat16()
        whole = int4.product(x, weight, invariant=True)
        for first, count in ((0, 1), (3, 5), (70, 64), (199, 1)):
            rows = x[first : first + count].contiguous()
            assert torch.equal(
                int4.product(rows, weight, invariant=True), whole[first : first + count]
            )

    @pytest.mark.usefixtures("checked")
    def test_products_follow_each_other(self) -> None:
        """Each reads what the one before wrote, though it may begin before that has ended."""
        weight = _drawn(2048, 2048, 128, zeros=True).to(torch.device("cuda"))
        x = torch.randn(4, 2048, device="cuda").bfloat16()
        norm = torch.ones(2048, device="cuda").bfloat16()
        expected = x
        for _ in range(20):
            expected = _exact(_normed(expected, norm).bfloat16(), weight).bfloat16()

        def chained() -> Tensor:
            out = x
            for _ in range(20):
                out = int4.product(out, weight, Epilogue(norm=norm, eps=EPS))
            return out

        chained()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = chained()
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
        assert _error(out, expected.double()) < 3e-2
