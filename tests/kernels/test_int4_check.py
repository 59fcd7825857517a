"""The check before `int4_tiles` serves a device, with a double of the kernel on the CPU."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.cuda.source import CompileError
from kernels.int4 import Int4Weight
from kernels.linear import (
    int4,
    int4_ampere,
    int4_check,
    int4_choose,
    int4_mark,
    int4_tiles,
    int4_verdict,
)
from kernels.linear.config import Int4Ampere, Int4Tiles
from kernels.linear.epilogue import NOTHING, Epilogue
from kernels.linear.int4 import Kernel
from kernels.linear.int4_check import PRODUCTS, WGMMA_PRODUCTS, CheckedProduct, Inputs
from kernels.linear.int4_verdict import CandidateKernel, CardBroken

CPU = torch.device("cpu")
HALVES = [torch.bfloat16, torch.float16]

Spoil = Callable[[Tensor], Tensor]


def double(spoil: Spoil = lambda out: out) -> Callable[..., Tensor]:
    """The product as a card has it, rounded once, then spoilt."""

    def product(
        x: Tensor, weight: Int4Weight, config: Int4Tiles | Int4Ampere, epilogue: Epilogue = NOTHING
    ) -> Tensor:
        parts = "swiglu" if epilogue.swiglu else ""
        case = CheckedProduct(*x.shape, 0, 0, parts)
        return spoil(int4_check.exact(case, Inputs(x, weight, epilogue)).to(x.dtype))

    return product


def found(product: Callable[..., Tensor], dtype: torch.dtype = torch.bfloat16) -> str:
    return int4_check.first_fault(product, CPU, dtype, lambda: None)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_right_kernel_has_no_fault(dtype: torch.dtype) -> None:
    """A right kernel has no fault in both dtypes of 16 bits: what is rounded is no fault."""
    assert found(double(), dtype) == ""


def one_off(out: Tensor) -> Tensor:
    """A number of the last row is that of its neighbour."""
    out = out.clone()
    out[-1, -1] = out[-1, -2] + 1
    return out


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (one_off, "at most"),
        (lambda out: out * 1.02, "on average"),
        (lambda out: out.roll(1, dims=-1), "on average"),
        (torch.zeros_like, "on average"),
        (lambda out: out[:, :-1], "instead of"),
        (lambda out: out.masked_fill(out == out.max(), torch.nan), "not finite"),
        (lambda out: out / 0, "not finite"),
    ],
)
def test_wrong_answers_are_faults(spoil: Spoil, words: str) -> None:
    """One number of all is enough; the line says which product and how wrong."""
    assert words in found(double(spoil))


def test_a_column_that_is_left_out_is_a_fault() -> None:
    def product(
        x: Tensor, weight: Int4Weight, config: Int4Tiles, epilogue: Epilogue = NOTHING
    ) -> Tensor:
        x = x.clone()
        x[:, -1] = 0
        return double()(x, weight, config, epilogue)

    assert "on average" in found(product)


@pytest.mark.parametrize("error", [CompileError, ValueError, RuntimeError])
def test_errors_of_compiler_and_driver_are_faults(error: type[Exception]) -> None:
    """The first line of an error of the compiler or the driver is the fault."""

    def product(*_: object, **__: object) -> Tensor:
        raise error("it has\nno such thing")

    assert found(product).endswith(": it has")


def test_a_broken_device_is_no_fault_of_the_check() -> None:
    """A broken device is raised and is no fault of the check, also where the error came with the
    launch.
    """

    def settle() -> None:
        raise CardBroken("gone")

    def fails(*_: object, **__: object) -> Tensor:
        raise RuntimeError("an illegal address")

    for product in (double(), fails):
        with pytest.raises(CardBroken):
            int4_check.first_fault(product, CPU, torch.bfloat16, settle)


def test_the_products_take_every_tile_and_every_part() -> None:
    """All that the defaults use, and what is not full."""
    configs = [
        p.config
        or int4_choose.chosen(p.num_rows, p.num_weight_rows, p.depth, invariant=p.has("invariant"))
        for p in PRODUCTS
    ]
    assert {config.eights for config in configs} == {1, 2, 4, 8}
    assert {config.early for config in configs} == {False, True}
    assert {config.turns for config in configs} == {1, 2, 3, 4}
    assert {1, 8} < {config.splits for config in configs}
    assert {p.group for p in PRODUCTS} == {32, 64, 128}
    assert any(p.depth % int4_tiles.COLUMNS for p in PRODUCTS)
    assert any(p.num_weight_rows % c.tile for p, c in zip(PRODUCTS, configs, strict=True))
    assert any(p.num_rows > 8 * c.eights for p, c in zip(PRODUCTS, configs, strict=True))
    parts = {part for p in PRODUCTS for part in p.parts.split()}
    assert parts == {
        "zeros", "norm", "swiglu", "gelu", "residual", "bias", "other_scales", "invariant",
    }  # fmt: skip
    for part in ("zeros", "norm"):
        assert {p.has(part) for p in PRODUCTS} == {False, True}


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "int4_check"


@pytest.mark.parametrize("fault", ["", "errors of 1"])
def test_a_check_that_ended_is_made_again_in_the_next_process(mark: Path, fault: str) -> None:
    """Right or wrong: a card, a driver and a cache may change."""
    for _ in range(2):
        verdict = int4_verdict.judge(mark, lambda: fault)
        assert (verdict.serves, verdict.is_fault) == (not fault, bool(fault))
        assert fault in verdict.text


def test_a_check_that_did_not_end_is_not_made_again(mark: Path) -> None:
    """The line names its mark; without that file the check is made again."""

    def breaks() -> str:
        raise CardBroken("gone")

    with pytest.raises(CardBroken):
        int4_verdict.judge(mark, breaks)
    verdict = int4_verdict.judge(mark, breaks)
    assert not verdict.serves
    assert verdict.is_fault
    assert str(mark) in verdict.text
    mark.unlink()
    assert int4_verdict.judge(mark, lambda: "").serves


def _checking(mark: Path, ends: str) -> "subprocess.Popen[str]":
    """A process whose check says that it has begun, and then ends so."""
    # Of a file of its own, because torch takes seconds to import.
    program = f"""
import ctypes, importlib.util, os, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("int4_mark", {str(int4_mark.__file__)!r})
int4_mark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(int4_mark)
class CardBroken(Exception): pass
with int4_mark.held(Path(sys.argv[1])) as file, int4_mark.marked(file, CardBroken):
    print("begun", flush=True)
    {ends}
    time.sleep(600)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(mark)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_check_that_others_ended_is_made_again(mark: Path, number: signal.Signals) -> None:
    """Ctrl-C leaves nothing at all, a kill nothing that counts; only kills in a row do, because a
    driver that hangs is killed too.
    """
    for _ in range(int4_mark.MOST_ENDED - 1):
        with _checking(mark, "pass") as process:
            process.send_signal(number)
        assert (mark.read_text() == "") == (number == signal.SIGINT)
    assert int4_verdict.judge(mark, lambda: "").serves
    assert mark.read_text() == ""


def test_checks_that_are_always_killed_are_left_out(mark: Path) -> None:
    """The line names the mark."""
    for _ in range(int4_mark.MOST_ENDED):
        with _checking(mark, "pass") as process:
            process.kill()
    verdict = int4_verdict.judge(mark, lambda: "")
    assert not verdict.serves
    assert f"3 earlier checks did not end, but were killed; remove {mark}" in verdict.text


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("ctypes.string_at(0)", "Fatal Python error: Segmentation fault"),
        ("os.abort()", "Fatal Python error: Aborted"),
        ("raise CardBroken('it broke the card')", "it broke the card"),
    ],
)
def test_a_check_that_crashes_is_not_made_again(mark: Path, ends: str, said: str) -> None:
    """A check that crashes is made once and not again; the line says by what it crashed."""
    with _checking(mark, ends):
        pass
    verdict = int4_verdict.judge(mark, lambda: "")
    assert not verdict.serves
    assert f"an earlier check did not end: {said}" in verdict.text


def test_without_a_check_nothing_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that was not checked, and one that the kernel is not for."""
    card = torch.device("cuda:0")
    assert not int4_verdict.serves(card, torch.bfloat16)
    assert int4_verdict.verdict_on(card, torch.bfloat16) is None
    monkeypatch.setattr(int4_verdict, "_verdicts", {})
    monkeypatch.setattr(int4_verdict, "candidate_on", lambda _: None)
    verdict = int4_verdict.check(card, torch.bfloat16)
    assert (verdict.serves, verdict.is_fault) == (False, False)
    assert not int4_verdict.serves(card, torch.bfloat16)


def test_warp_groups_that_broke_the_device_are_left_out_alone(
    monkeypatch: pytest.MonkeyPatch, mark: Path
) -> None:
    """Warp groups that broke the device are left out alone at the next start, by a mark of their
    own.
    """

    def product(
        x: Tensor, weight: Int4Weight, config: Int4Tiles, epilogue: Epilogue = NOTHING
    ) -> Tensor:
        if x.is_meta:
            return x
        if config.wgmma:
            raise CardBroken("gone")
        return double()(x, weight, config, epilogue)

    monkeypatch.setattr(int4_verdict, "candidate_on", lambda _: CandidateKernel.TILES)
    monkeypatch.setattr(int4_verdict, "mark_of", lambda _: mark)
    monkeypatch.setattr(int4_verdict, "wait_for", lambda _: None)
    monkeypatch.setattr(int4_tiles, "product", product)
    monkeypatch.setattr(int4_verdict, "_verdicts", {})
    with pytest.raises(CardBroken):
        int4_verdict.check(CPU, torch.bfloat16)
    verdict = int4_verdict.check(CPU, torch.bfloat16)
    assert (verdict.serves, verdict.has_wgmma) == (True, False)
    assert "an earlier check did not end" in verdict.text


def test_a_device_is_checked_once(monkeypatch: pytest.MonkeyPatch, mark: Path) -> None:
    """A device is checked once for each dtype of its rows; the verdict is that of the kernel."""
    kernels = {torch.bfloat16: double(), torch.float16: double(torch.zeros_like)}
    calls: list[torch.dtype] = []

    def product(x: Tensor, *arguments: Any) -> Tensor:
        if x.is_meta:
            return x
        calls.append(x.dtype)
        return kernels[x.dtype](x, *arguments)

    monkeypatch.setattr(int4_verdict, "_verdicts", {})
    monkeypatch.setattr(int4_verdict, "candidate_on", lambda _: CandidateKernel.TILES)
    monkeypatch.setattr(int4_verdict, "mark_of", lambda _: mark)
    monkeypatch.setattr(int4_verdict, "wait_for", lambda _: None)
    monkeypatch.setattr(int4_tiles, "product", product)
    for _ in range(2):
        assert int4_verdict.check(CPU, torch.bfloat16).serves
        assert int4_verdict.check(CPU, torch.float16).is_fault
        assert int4_verdict.check(CPU, torch.float32) == int4_verdict.verdict_on(CPU, torch.float32)
    # Three chains of eight, and the first one that is wrong.
    num_right = len(PRODUCTS) + 3 * 7 + len(WGMMA_PRODUCTS)
    assert calls == [torch.bfloat16] * num_right + [torch.float16]
    assert int4_verdict.has_wgmma(CPU, torch.bfloat16)
    assert not int4_verdict.has_wgmma(CPU, torch.float16)
    served = [int4_verdict.serves(CPU, dtype) for dtype in (*HALVES, torch.float32)]
    assert served == [True, False, False]


def test_wrong_warp_groups_are_left_out_alone(monkeypatch: pytest.MonkeyPatch, mark: Path) -> None:
    """The kernel serves, and people hear of it."""

    def product(
        x: Tensor, weight: Int4Weight, config: Int4Tiles, epilogue: Epilogue = NOTHING
    ) -> Tensor:
        if x.is_meta:
            return x
        return double(torch.zeros_like if config.wgmma else lambda out: out)(
            x, weight, config, epilogue
        )

    monkeypatch.setattr(int4_verdict, "_verdicts", {})
    monkeypatch.setattr(int4_verdict, "candidate_on", lambda _: CandidateKernel.TILES)
    monkeypatch.setattr(int4_verdict, "mark_of", lambda _: mark)
    monkeypatch.setattr(int4_verdict, "wait_for", lambda _: None)
    monkeypatch.setattr(int4_tiles, "product", product)
    verdict = int4_verdict.check(CPU, torch.bfloat16)
    assert (verdict.serves, verdict.is_fault, verdict.has_wgmma) == (True, True, False)
    assert "without warp groups, which are wrong here: 64 rows, 392 x 2304" in verdict.text
    assert not int4_verdict.has_wgmma(CPU, torch.bfloat16)


@pytest.mark.parametrize("spoil", [lambda out: out, torch.zeros_like])
def test_other_cards_are_checked_by_their_own_kernel(
    spoil: Spoil, monkeypatch: pytest.MonkeyPatch, mark: Path
) -> None:
    """Other cards are checked by each tile of their own kernel, which serves where it is right;
    warp groups are not checked there.
    """
    tiles: set[object] = set()

    def product(
        x: Tensor, weight: Int4Weight, config: Int4Ampere, epilogue: Epilogue = NOTHING
    ) -> Tensor:
        if x.is_meta:
            return x
        tiles.add(config._replace(splits=1))
        return double(spoil)(x, weight, config, epilogue)

    monkeypatch.setattr(int4_verdict, "_verdicts", {})
    monkeypatch.setattr(int4_verdict, "candidate_on", lambda _: CandidateKernel.AMPERE)
    monkeypatch.setattr(int4_verdict, "shared_bytes", lambda _: 99 * 1024)
    monkeypatch.setattr(int4_verdict, "mark_of", lambda _: mark)
    monkeypatch.setattr(int4_verdict, "wait_for", lambda _: None)
    monkeypatch.setattr(int4_ampere, "product", product)
    verdict = int4_verdict.check(CPU, torch.bfloat16)
    is_right = spoil is not torch.zeros_like
    assert (verdict.serves, verdict.is_fault, verdict.has_wgmma) == (is_right, not is_right, False)
    assert "int4_ampere" in verdict.text
    serving = int4_verdict.serving(CPU, torch.bfloat16)
    assert serving is (CandidateKernel.AMPERE if is_right else None)
    assert not is_right or tiles == set(int4_ampere.configs_on(99 * 1024))


class Event:
    """A card's, which reports what the test says."""

    def __init__(self, error: str) -> None:
        self._error = error

    def record(self, stream: object) -> None:
        pass

    def query(self) -> bool:
        """Not yet, or never."""
        if self._error:
            raise RuntimeError(self._error)
        return False


@pytest.mark.parametrize("error", ["", "CUDA error: an illegal memory access\nwas encountered"])
def test_a_card_that_breaks_or_hangs_is_given_up(
    error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card that breaks or hangs is given up after a while, in one line that says what the next
    start does.
    """
    monkeypatch.setattr(torch.cuda, "Event", lambda: Event(error))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    monkeypatch.setattr(int4_verdict, "_LONGEST_S", 0.0)
    with pytest.raises(CardBroken, match="next start") as found:
        int4_verdict.wait_for(CPU)
    assert "\n" not in str(found.value)
    assert ("illegal" if error else "did not end") in str(found.value)


TILES, AMPERE = CandidateKernel.TILES, CandidateKernel.AMPERE
MANY = int4.SKINNY_ROWS + 1
CHOICES = [
    (0, TILES, False, False, Kernel.WIDENED),
    (1, TILES, True, True, Kernel.TILES),
    (MANY - 1, TILES, False, False, Kernel.TILES),
    (MANY, TILES, False, False, Kernel.WIDENED),
    (MANY, TILES, False, True, Kernel.TILES),
    (0, AMPERE, False, False, Kernel.WIDENED),
    (1, AMPERE, True, True, Kernel.AMPERE),
    (MANY - 1, AMPERE, False, False, Kernel.AMPERE),
    (MANY, AMPERE, False, False, Kernel.WIDENED),
    (MANY, AMPERE, False, True, Kernel.AMPERE),
    (int4.GEMV_ROWS, None, False, False, Kernel.GEMV),
    (1, None, True, False, Kernel.SKINNY),
    (1, None, False, True, Kernel.SKINNY),
    (int4.GEMV_ROWS + 1, None, False, False, Kernel.SKINNY),
    (MANY, None, False, False, Kernel.WIDENED),
    (MANY, None, False, True, Kernel.SKINNY),
]


@pytest.mark.parametrize(("num_rows", "serving", "has_order", "invariant", "kernel"), CHOICES)
def test_the_choice(
    num_rows: int, serving: CandidateKernel | None, has_order: bool, invariant: bool, kernel: Kernel
) -> None:
    """Without a good verdict the choice is the one that every other card has."""
    assert kernel is int4.choose(
        num_rows, has_tiles=serving is TILES, has_ampere=serving is AMPERE, has_order=has_order,
        invariant=invariant,
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("dtype", HALVES)
def test_it_is_right_on_this_card(dtype: torch.dtype) -> None:
    """The kernel that is this card's candidate."""
    card = torch.device("cuda:0")
    verdict = int4_verdict.check(card, dtype)
    print(verdict.text)
    assert not verdict.is_fault
    assert verdict.serves == (int4_verdict.candidate_on(card) is not None)
