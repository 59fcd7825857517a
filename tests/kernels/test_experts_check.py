"""Whether experts may be multiplied in CUDA C++: what the check finds wrong, and what follows from
the end of its process.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pytest
import torch
from torch import Tensor

from kernels.experts import Activation, card_check, choose, mxfp4, reference, verdict
from kernels.experts.card_check import CheckedCase, CheckedMixture, MixtureInputs, as_read, cases_of
from kernels.experts.choose import Way
from kernels.experts.verdict import MixtureVerdict
from kernels.mxfp4 import Mxfp4Weight

CPU: Final = torch.device("cpu")
CARD: Final = torch.device("cuda", 0)
SMALL: Final = CheckedMixture(96, 64, 2, True, Activation(1.702, 1.0, 7.0))
IN_FORMS: Final = (
    SMALL,
    *(CheckedMixture(256, 128, 2, True, Activation(), form) for form in ("rows", "blocks")),
)
GPT_OSS: Final = CheckedMixture(2880, 2880, 4, True, Activation(1.702, 1.0, 7.0))


def _exact(
    mixture: CheckedMixture, inputs: MixtureInputs, case: CheckedCase
) -> tuple[Tensor, Tensor]:
    """What a kernel would answer that only rounds."""
    (gates, downs), (up, down) = inputs.stacks, inputs.biases
    own = [None if bias is None else bias.float() for bias in (up, down)]
    given = inputs.routed, inputs.routing
    x = as_read(inputs.x, case)
    narrow = reference.gate_up(x, gates, own[0], *given, mixture.activation).bfloat16()
    out = reference.down(as_read(narrow, case), downs, own[1], *given, inputs.residual.float())
    return narrow, out.bfloat16()


@pytest.mark.parametrize("mixture", IN_FORMS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_rounding_is_no_fault(mixture: CheckedMixture, *, has_bias: bool) -> None:
    """Rounding is no fault, in products that only round, of few rows and of more."""
    mixture = msgspec.structs.replace(mixture, has_bias=has_bias)
    assert card_check.first_fault(mixture, CPU, _exact) == ""


def _zero_first_gates(gated: Tensor, out: Tensor) -> None:
    gated[:, :8] = 0


def _zero_last_outputs(gated: Tensor, out: Tensor) -> None:
    out[-1, -16:] = 0


def _spoil(gated: Tensor, out: Tensor) -> None:
    out[0, 0] = torch.nan


@pytest.mark.parametrize(
    ("mixture", "case"), [(each, case) for each in IN_FORMS for case in cases_of(each.form)]
)
@pytest.mark.parametrize(
    ("change", "name"),
    [(_zero_first_gates, "gates"), (_zero_last_outputs, "down"), (_spoil, "not finite")],
)
def test_a_wrong_tile_is_a_fault(
    change: Callable[[Tensor, Tensor], None],
    name: str,
    mixture: CheckedMixture,
    case: CheckedCase,
) -> None:
    """A wrong tile is a fault in any of the cases, which the line names."""

    def products(
        mixture: CheckedMixture, inputs: MixtureInputs, asked: CheckedCase
    ) -> tuple[Tensor, Tensor]:
        answers = _exact(mixture, inputs, asked)
        if asked == case:
            change(*answers)
        return answers

    fault = card_check.first_fault(mixture, CPU, products)
    assert name in fault
    assert f"{mixture.hidden} x {mixture.width}, {case.num_rows} rows, {case.kernel}: " in fault


def test_what_a_driver_refuses_is_a_fault() -> None:
    """The first line of a driver's refusal becomes the fault."""

    def products(*_: object) -> tuple[Tensor, Tensor]:
        raise RuntimeError("an illegal instruction was encountered\nand more")

    fault = card_check.first_fault(SMALL, CPU, products)
    assert fault == "96 x 64, 1 rows, each pair alone: an illegal instruction was encountered"


def _program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('\"\"')", ""),
        ("print('\"down: wrong\"')", "down: wrong"),
        ("import os; os.abort()", "ended with status -6"),
        ("raise RuntimeError('no such card')", "status 1: RuntimeError: no such card"),
        ("print('what')", "no answer"),
        ("pass", "no answer"),
        ("import time; time.sleep(600)", "did not end in 2 s"),
    ],
)
def test_a_process_answers_or_its_end_is_a_fault(program: str, said: str) -> None:
    """Right, wrong, a crash, an error, nonsense, silence, and one that never ends."""
    longest_s = 2.0 if "sleep" in program else 60.0
    fault = verdict.asked(_program(program), b"{}", longest_s)
    assert said in fault
    assert bool(fault) == bool(said)


def test_a_program_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    """A program that is missing is a fault of the check, and no error of the engine."""
    assert "did not start" in verdict.asked([str(tmp_path / "none")], b"{}")


def test_right_is_remembered_and_wrong_is_not(tmp_path: Path) -> None:
    """A check that failed is made again at the next start; one that was right is not."""
    mark, asked = tmp_path / "cache" / "right", []

    def run(fault: str) -> str:
        asked.append(fault)
        return fault

    wrong = verdict.judge(mark, partial(run, "down: wrong"))
    assert (wrong.serves, wrong.is_fault) == (False, True)
    assert wrong.text.count("\n") == 0
    assert "Triton's kernels, those in CUDA C++: down: wrong (" in wrong.text
    right = verdict.judge(mark, partial(run, ""))
    assert (right.serves, right.is_fault) == (True, False)
    assert verdict.judge(mark, partial(run, "never asked")).serves
    assert asked == ["down: wrong", ""]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[torch.device]:
    """An H200 that is not there, with a compiler."""
    monkeypatch.setattr(mxfp4, "runs_on", lambda _: True)
    monkeypatch.setattr(verdict, "capability", lambda _: (9, 0))
    monkeypatch.setattr(verdict, "mark_of", lambda *_: tmp_path / "right")
    monkeypatch.setattr(verdict, "_verdicts", {})
    return CARD


def _checked(device: torch.device, mixture: CheckedMixture, program: str) -> MixtureVerdict:
    return verdict.check(device, mixture, _program(program))


def test_a_right_check_lets_the_kernel_serve_its_sizes(card: torch.device) -> None:
    """A right check lets the kernel serve the checked sizes alone, and runs once in a process."""
    assert not verdict.serves(card, 2880, 2880, "mxfp4")
    assert _checked(card, GPT_OSS, "print('\"\"')").serves
    assert verdict.serves(card, 2880, 2880, "mxfp4")
    assert not verdict.serves(card, 2880, 1440, "mxfp4")
    assert not verdict.serves(card, 2880, 2880, "rows")
    assert _checked(card, GPT_OSS, "print('\"wrong\"')").serves
    assert verdict.fault_on(card) == ""


@pytest.mark.parametrize("program", ["print('\"down: wrong\"')", "import os; os.abort()"])
def test_a_fault_leaves_triton_and_a_line(card: torch.device, program: str) -> None:
    """A wrong number, or a crash."""
    found = _checked(card, GPT_OSS, program)
    assert not verdict.serves(card, 2880, 2880, "mxfp4")
    assert found.text == verdict.fault_on(card)
    assert "Triton's kernels" in found.text


def test_what_no_card_has_run_is_not_even_checked(
    card: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other sizes, other cards, no card or no compiler there is no check: Triton's kernels
    serve, without a fault.
    """
    right = "print('\"\"')"
    for mixture in (SMALL, CheckedMixture(2880, 1440, 4, True, Activation())):
        assert not _checked(card, mixture, right).serves
    monkeypatch.setattr(verdict, "capability", lambda _: (8, 0))
    assert "has run 2880 x 2880, mxfp4 on such a card" in _checked(card, GPT_OSS, right).text
    monkeypatch.setattr(mxfp4, "runs_on", lambda _: False)
    monkeypatch.setattr(verdict, "_verdicts", {})
    assert not _checked(card, GPT_OSS, right).serves
    assert not verdict.serves(CPU, 2880, 2880, "mxfp4")
    assert verdict.fault_on(card) == ""


def test_ahead_what_a_card_has_run_counts_as_right(card: torch.device) -> None:
    """Ahead of a run, what a card has run counts as right on the pretended device, so that its
    kernels are compiled.
    """
    meta = torch.device("meta")
    assert verdict.serves(meta, 2880, 2880, "mxfp4")
    assert not verdict.serves(meta, 96, 64, "mxfp4")


def test_the_choice_follows_the_verdict(
    card: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choice follows the verdict for the device and the sizes of both stacks."""
    monkeypatch.setattr(mxfp4, "suits", lambda *_: True)
    x = torch.empty(1, 2880, dtype=torch.bfloat16, device="meta")

    def stack(num_rows: int) -> Mxfp4Weight:
        pairs = torch.empty(num_rows, 1440, dtype=torch.uint8, device="meta")
        return Mxfp4Weight(pairs, torch.empty(num_rows, 90, dtype=torch.uint8, device="meta"))

    given = x, stack(2 * 2880 * 32), stack(2880 * 32), 4, 32
    assert choose.way(*given, invariant=False) is Way.FEW_MXFP4
    monkeypatch.setattr(verdict, "RAN", frozenset())
    assert choose.way(*given, invariant=False) is Way.FEW
