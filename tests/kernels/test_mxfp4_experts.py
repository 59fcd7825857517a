"""Experts of few rows in MXFP4 in CUDA C++: the source on an emulated card, how products are cut
up, and on a card the answers.
"""

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
import torch
import triton
from torch import Tensor

from kernels.experts import (
    Activation,
    ExpertWeights,
    Routed,
    Routing,
    choose,
    listed,
    mix,
    mxfp4,
)
from kernels.experts.choose import Way
from kernels.experts.mxfp4 import Mxfp4Tiles
from kernels.recorder import record_launches
from tests.kernels import emulated_ampere, emulated_experts
from tests.kernels.cubins import resources
from tests.kernels.drawn_mixtures import (
    Inputs,
    Mixture,
    drawn_inputs,
    exact_down,
    exact_gated,
    relative_error,
)
from tests.kernels.expert_cases import CLAMPED

KIB: Final = 1024
ARCHES: Final = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
"""With KiB of shared memory."""
GPT_OSS: Final = 2880
TOLERANCE: Final = 1e-2
"""What rounding leaves: of weights that are exact, gates times ups and sums in bfloat16."""

emulated = pytest.mark.skipif(emulated_ampere.COMPILER is None, reason="needs g++")


EMULATED: Final = (
    (Mixture(1, 96, 64, 4, 2), Mxfp4Tiles(2, 1, 2, 1)),
    (Mixture(3, 288, 32, 5, 3, has_bias=False), Mxfp4Tiles(2, 1, 1, 1)),
    (Mixture(7, 320, 96, 5, 2, "unchosen"), Mxfp4Tiles(2, 2, 2, 1)),
    (Mixture(21, 160, 64, 3, 2, "same", activation=Activation()), Mxfp4Tiles(2, 2, 2, 1)),
    (Mixture(13, 1056, 32, 3, 1), Mxfp4Tiles(4, 1, 3, 1)),
)
"""A step that has columns for one lane, units for one warp."""


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the emulated kernel's libraries."""
    return tmp_path_factory.mktemp("experts")


@emulated
@pytest.mark.parametrize(("mixture", "tiles"), EMULATED, ids=str)
def test_its_source_multiplies_right(mixture: Mixture, tiles: Mxfp4Tiles, room: Path) -> None:
    """The source multiplies right with copies as early and as late as they may be, with threads
    from both ends, by few programs and by many: the same bits.
    """
    inputs = drawn_inputs(mixture, "placed")
    exact = exact_gated(mixture, inputs)
    wanted = exact_down(mixture, inputs, exact.bfloat16())
    answers = []
    for grid, is_eager, is_back in ((2, False, False), (40, True, True)):
        card = emulated_experts.Card(room, grid=grid, is_eager=is_eager, is_back=is_back)
        given = emulated_experts.Product(
            inputs.x, inputs.stacks[0], inputs.biases[0], inputs.routed, mixture.count
        )
        gated = emulated_experts.gate_up(card, given, mixture.activation, tiles)
        assert relative_error(gated, exact) < TOLERANCE
        given = given._replace(x=exact.bfloat16(), stack=inputs.stacks[1], bias=inputs.biases[1])
        out = emulated_experts.down(card, given, inputs.residual, tiles)
        assert relative_error(out, wanted) < TOLERANCE
        answers.append((gated, out))
    for one, other in zip(*answers, strict=True):
        assert torch.equal(one, other)


MISTAKES: Final = (
    ("wait_groups<STAGES * STEPS - 1>();", "wait_groups<STAGES * STEPS>();"),
    ("__syncthreads();  // all have read the sums", "// all have read the sums"),
    ("(power + 62)", "(power + 61)"),
    ("BFLOATS = 0x81C081C0", "BFLOATS = 0x81808180"),
    ("turned(word, 10)", "turned(word, 26)"),
    ("0x001B001B", "0x001A001A"),
    ("slot = slot == STAGES - 1 ? 0 : slot + 1;", ""),
    ("chunk * 8 >= DEPTH", "chunk * 8 >= DEPTH - 32"),
    ("up = sum_of(row + 8)", "up = sum_of(row)"),
    ("load_powers(next_powers, row_queue[1])", "load_powers(next_powers, row_queue[0])"),
    ("if (tile != loaded)", "if (loaded < 0)"),
)


@emulated
@pytest.mark.parametrize(("right", "wrong"), MISTAKES)
def test_an_emulated_card_sees_mistakes(right: str, wrong: str, room: Path, tmp_path: Path) -> None:
    """An emulated card sees mistakes in how the kernel waits, copies, and finds its places: a
    fault, or a wrong answer.
    """
    path = mxfp4.mxfp4_experts.path
    texts = {name: path.with_name(name).read_text() for name in ("mxfp4.cu", "e2m1.h")}
    assert sum(right in text for text in texts.values()) == 1
    for name, text in texts.items():
        (tmp_path / name).write_text(text.replace(right, wrong))
    source = tmp_path / "mxfp4.cu"
    mixture = Mixture(11, 288, 64, 3, 2)
    tiles = Mxfp4Tiles(2, 1, 2, 1)
    inputs = drawn_inputs(mixture, "placed")
    exact = exact_gated(mixture, inputs)
    given = emulated_experts.Product(
        inputs.x, inputs.stacks[0], inputs.biases[0], inputs.routed, mixture.count
    )
    is_right = []
    for is_eager, is_back in ((False, False), (True, True)):
        if not all(is_right):
            break
        card = emulated_experts.Card(room, source, 2, is_eager=is_eager, is_back=is_back)
        try:
            gated = emulated_experts.gate_up(card, given, mixture.activation, tiles)
        except AssertionError:
            is_right.append(False)
        else:
            is_right.append(relative_error(gated, exact) < TOLERANCE)
    assert not all(is_right)


@pytest.mark.parametrize(("arch", "size"), ARCHES.items())
def test_gpt_oss_fits_every_card(arch: int, size: int) -> None:
    """One row of x for gates and ups, those of a row's pairs for what is down."""
    del arch
    for x_rows, is_up in ((1, True), (4, False)):
        tiles = mxfp4.chosen(GPT_OSS, x_rows, size * KIB, is_up=is_up)
        used = mxfp4.used_bytes(tiles, GPT_OSS, x_rows)
        assert tiles.blocks * used <= size * KIB
    with pytest.raises(ValueError, match="rows of"):
        mxfp4.chosen(2**16, 8, size * KIB)


def test_the_choice_leaves_what_it_cannot_do_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice leaves to Triton what the kernel cannot do: by the form, the dtype, the number of
    pairs and the card. The kernel is off unless it is asked for.
    """
    for module in (mxfp4, listed):
        monkeypatch.setattr(module, "runs_on", lambda _: True)
        monkeypatch.setattr(module, "shared_bytes", lambda _: 227 * KIB)
    inputs = drawn_inputs(Mixture(2, 96, 64, 4, 2), "mxfp4")
    x, stacks = inputs.x, inputs.stacks

    def way(x: Tensor, num_pairs: int, *, in_cuda: bool | None, invariant: bool = False) -> Way:
        return choose.way(x, *stacks, num_pairs, 4, invariant=invariant, in_cuda=in_cuda)

    assert way(x, 1, in_cuda=True) is Way.FEW_MXFP4
    assert way(x, 2, in_cuda=True) is Way.LISTED
    assert way(x, 2, in_cuda=True, invariant=True) is Way.FEW_MXFP4
    assert way(x, 4 * 16 + 2, in_cuda=True) is Way.MANY
    assert way(x, 4 * 36 - 2, in_cuda=True) is Way.MANY
    assert way(x, 4 * 36, in_cuda=True) is Way.WIDENED
    assert way(x, 4 * 36, in_cuda=False) is Way.WIDENED
    assert way(x, 4 * 36, in_cuda=True, invariant=True) is Way.FEW_MXFP4
    assert way(x, 4 * 36, in_cuda=False, invariant=True) is Way.FEW
    assert way(x.float(), 4 * 36, in_cuda=True) is Way.MANY
    assert way(x.float(), 2, in_cuda=True) is Way.MANY
    assert way(x.float(), 1, in_cuda=True) is Way.FEW
    assert way(x, 2, in_cuda=False) is Way.MANY
    assert choose.way(x, x, x, 2, 4, invariant=False, in_cuda=True) is Way.FEW
    monkeypatch.setattr(mxfp4, "runs_on", lambda _: False)
    assert way(x, 1, in_cuda=True) is Way.FEW


def test_on_a_pretended_device_its_compilation_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a pretended device the compilation is recorded for that card, once for all numbers of rows
    that use the same tiles.
    """
    monkeypatch.setattr(mxfp4, "capability", lambda _: (9, 0))
    monkeypatch.setattr(mxfp4, "shared_bytes", lambda _: 227 * KIB)
    mixture, meta = Mixture(5, 96, 64, 4, 2), torch.device("meta")
    inputs = drawn_inputs(mixture, "mxfp4")
    routed = Routed(inputs.routed.experts.to(meta), inputs.routed.weights.to(meta))
    with record_launches() as recorded:
        for num_rows in (4, 5):
            x = inputs.x[:num_rows].to(meta)
            own = Routed(routed.experts[:num_rows], routed.weights[:num_rows])
            stack = inputs.stacks[0].to(meta)
            gated = mxfp4.gate_up(x, stack, None, own, mixture.width, CLAMPED)
            assert gated.shape == (2 * num_rows, mixture.width)
    (kernel,) = recorded.values()
    assert kernel.name == "mxfp4_experts"
    assert '"ARCH":90' in kernel.specialisation


@pytest.mark.gpu
@pytest.mark.skipif(find_spec("cuda") is None, reason="needs torch for CUDA")
@pytest.mark.parametrize("arch", ARCHES)
def test_it_compiles_for_a_card_without_spills(arch: int, tmp_path: Path) -> None:
    """Both products of gpt-oss compile for a card without spilled registers."""
    for x_rows, is_up in ((1, True), (4, False)):
        tiles = mxfp4.chosen(GPT_OSS, x_rows, ARCHES[arch] * KIB, is_up=is_up)
        of = mxfp4.Product(is_up, GPT_OSS, GPT_OSS, 4, has_bias=True)
        constants = mxfp4.constants_of(of, tiles, arch)
        used = resources(mxfp4.mxfp4_experts.cubin(constants), tmp_path)
        assert used["STACK"] == 0, constants
        assert used["LOCAL"] == 0, constants
        assert used["REG"] * 32 * tiles.warps * tiles.blocks <= 65536


MACHINE_TILES: Final = (
    ((2880, 2880, 4), Mxfp4Tiles(12, 2, 1, 2)),
    ((2880, 2880, 4), Mxfp4Tiles(8, 1, 3, 2)),
    ((2880, 2880, 4), Mxfp4Tiles(6, 1, 2, 4)),
    ((2880, 2880, 4), Mxfp4Tiles(24, 1, 6, 1)),
    ((160, 96, 3), Mxfp4Tiles(12, 1, 3, 2)),
)


@pytest.mark.gpu
@pytest.mark.skipif(find_spec("cuda") is None, reason="needs torch for CUDA")
@pytest.mark.parametrize(("sizes", "tiles"), MACHINE_TILES, ids=str)
def test_its_machine_code_reads_no_register_that_nothing_writes(
    sizes: tuple[int, int, int], tiles: Mxfp4Tiles, tmp_path: Path
) -> None:
    """The machine code reads no register that nothing writes. NVRTC 13.0 made such code of a
    constant policy of the L2 cache with all these tiles except the first: an illegal instruction.
    """
    depth, out, active = sizes
    of = mxfp4.Product(False, depth, out, active, has_bias=True)
    path = tmp_path / "kernel.cubin"
    path.write_bytes(mxfp4.mxfp4_experts.cubin(mxfp4.constants_of(of, tiles, 90)))
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    code = subprocess.run([tool, "-c", path], capture_output=True, check=True, text=True).stdout
    read = set(re.findall(r"LDGSTS.*desc\[(UR\d+)\]", code))
    written = set(re.findall(r"\*/ +(?:@\S+ +)?U\S+ +(?:UP\w+, )?(UR\d+)", code))
    assert read
    assert read <= written


_HAS_CARD: Final = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)

ON_CARD: Final = (
    *(Mixture(num_rows, 96, 160, 6, 3) for num_rows in (1, 2, 5, 8, 9, 16, 17, 33, 64)),
    Mixture(3, 1056, 32, 9, 4, "unchosen", has_bias=False),
    Mixture(70, 32, 1568, 5, 2, "unchosen"),
    Mixture(64, 544, 96, 4, 2, "same"),
    Mixture(7, 544, 96, 4, 2, "same", has_bias=False, activation=Activation()),
    *(Mixture(num_rows, 2880, 2880, 8, 4) for num_rows in (1, 8, 24)),
)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.gpu
@pytest.mark.skipif(
    not _HAS_CARD or find_spec("cuda") is None, reason="needs a card from Ampere on"
)
class TestOnCard:
    """Against float32; each answer twice."""

    @pytest.mark.parametrize("mixture", ON_CARD, ids=str)
    def test_products(self, mixture: Mixture) -> None:
        """Sizes that leave most of a step empty."""
        host, card = drawn_inputs(mixture, "mxfp4"), drawn_inputs(mixture, "placed", "cuda")
        exact = exact_gated(mixture, host)
        gated_exact = exact.bfloat16().cuda()
        wanted = exact_down(mixture, host, exact.bfloat16())
        for _ in range(2):
            answers = [
                (
                    mxfp4.gate_up(
                        card.x, card.stacks[0], card.biases[0], card.routed, mixture.width,
                        mixture.activation,
                    ),
                    _settled_down(card, gated_exact),
                )
                for _ in range(2)
            ]  # fmt: skip
            for gated, out in answers:
                assert relative_error(gated, exact) < TOLERANCE
                assert relative_error(out, wanted) < TOLERANCE
                assert torch.equal(gated, answers[0][0])
                assert torch.equal(out, answers[0][1])

    @pytest.mark.parametrize("num_rows", [1, 2, 8, 64, 128])
    def test_the_choice(self, num_rows: int) -> None:
        """A layer of gpt-oss with 8 experts, as it is served; beside Triton's kernels."""
        mixture = Mixture(num_rows, 2880, 2880, 8, 2)
        inputs = drawn_inputs(mixture, "placed", "cuda")
        found = _mixed(mixture, inputs)
        assert torch.equal(found, _mixed(mixture, inputs))
        by_triton = _mixed(mixture, drawn_inputs(mixture, "mxfp4", "cuda"))
        assert relative_error(found, by_triton.cpu()) < TOLERANCE

    def test_rows_do_not_depend_on_their_neighbours(self) -> None:
        """Bit for bit, where that is asked for."""
        mixture = Mixture(20, 576, 288, 6, 2)
        whole = drawn_inputs(mixture, "placed", "cuda")
        answer = _mixed(mixture, whole, invariant=True)
        for row in (0, 7, 19):
            part = slice(row, row + 1)
            own = Routed(whole.routed.experts[part], whole.routed.weights[part])
            alone = whole._replace(
                x=whole.x[part].contiguous(), routed=own, residual=whole.residual[part]
            )
            assert torch.equal(_mixed(mixture, alone, invariant=True)[0], answer[row])

    @pytest.mark.parametrize("num_rows", [1, 8, 40])
    def test_a_graph_serves_every_choice(self, num_rows: int) -> None:
        """Layers that follow each other, though each kernel may begin before the one ahead has
        ended; experts other than those of the capture.
        """
        mixture = Mixture(num_rows, 576, 288, 12, 2)
        inputs = drawn_inputs(mixture, "placed", "cuda")

        def layers() -> Tensor:
            x = inputs.x
            for _ in range(6):
                x = _mixed(mixture, inputs._replace(x=x, residual=inputs.residual))
                x = x / x.float().square().mean(-1, keepdim=True).sqrt().bfloat16()
            return x

        layers()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = layers()
        for seed in range(5):
            generator = torch.Generator("cuda").manual_seed(seed)
            scores = torch.rand(num_rows, 12, generator=generator, device="cuda")
            inputs.routed.experts.copy_(scores.topk(2, dim=1).indices.int())
            expected = layers()
            torch.cuda.synchronize()
            out.fill_(torch.nan)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out, expected)


def _settled_down(inputs: Inputs, gated: Tensor) -> Tensor:
    """What is down, behind experts that are known: in a layer gates and ups stand between."""
    torch.cuda.synchronize()
    return mxfp4.down(gated, inputs.stacks[1], inputs.biases[1], inputs.routed, inputs.residual)


def _mixed(mixture: Mixture, inputs: Inputs, *, invariant: bool = False) -> Tensor:
    up, down = inputs.biases
    weights = ExpertWeights(inputs.x, gate_up_bias=up, down_bias=down)
    routing = Routing(mixture.count, mixture.active)
    given = inputs.x, *inputs.stacks, weights, inputs.routed, routing, mixture.activation
    return mix(*given, inputs.residual.clone(), invariant=invariant)
