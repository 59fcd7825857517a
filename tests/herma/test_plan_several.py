"""`herma plan` of several models: which fit together, which take turns."""

import re
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import find_mistakes
from herma.cli import main
from herma.commands.plan_several import CardAndHost, several
from herma.planned_together import FormNeed, ModelNeed, fit, largest_sets

GIB = 2**30


def _need(name: str, *gib: float) -> ModelNeed:
    """A model with forms of these sizes, the widest first."""
    forms = [
        FormNeed(weights, fp8_kv, int(size * GIB), int(size * GIB) // 2)
        for (weights, fp8_kv), size in zip(
            (("bfloat16", False), ("fp8", False), ("fp8", True)), gib, strict=False
        )
    ]
    return ModelNeed(name, 8192, tuple(forms))


def _plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["plan", *arguments])
    printed = capsys.readouterr()
    assert all(len(line) <= 80 for line in printed.out.splitlines())
    return status, printed.out, printed.err


# The choice.


def test_what_spares_most_goes_to_a_narrower_form_first() -> None:
    small, large = _need("s", 10, 9), _need("l", 40, 20)
    assert [one.num_bytes for one in fit([small, large], 60 * GIB) or ()] == [10 * GIB, 40 * GIB]
    assert [one.num_bytes for one in fit([small, large], 30 * GIB) or ()] == [10 * GIB, 20 * GIB]
    assert [one.num_bytes for one in fit([small, large], 29 * GIB) or ()] == [9 * GIB, 20 * GIB]
    assert fit([small, large], 28 * GIB) is None


def test_sets_to_which_nothing_can_come_are_named_once() -> None:
    models = [_need("a", 10), _need("b", 20), _need("c", 25), _need("d", 50)]
    found = [one.places for one in largest_sets(models, 36 * GIB)]
    assert found == [(0, 1), (0, 2)]


@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=3), min_size=1, max_size=5),
    st.integers(1, 60),
)
def test_every_set_fits_and_none_could_be_larger(sizes: list[list[int]], card: int) -> None:
    models = [_need(str(at), *size) for at, size in enumerate(sizes)]
    sets = list(largest_sets(models, card * GIB))
    assert len(sets) == len({one.places for one in sets})
    for one in sets:
        assert one.num_bytes <= card * GIB
        for other in set(range(len(models))) - set(one.places):
            least = sum(models[place].least.num_bytes for place in (*one.places, other))
            assert least > card * GIB
    alone = [one for one in models if one.least.num_bytes <= card * GIB]
    assert {place for one in sets for place in one.places} == {
        models.index(one) for one in models if one in alone
    } or len(set(models)) < len(models)


def test_the_host_s_memory_is_that_of_all_that_may_sleep_at_once() -> None:
    """One of the two is awake: the smaller set leaves the larger model asleep."""
    lines, fits = several([_need("a", 30), _need("b", 20)], CardAndHost(36 * GIB, "", 64 * GIB))
    assert fits
    text = "\n".join(lines)
    assert "by native sleep: 25.00 GiB, the weights of all" in text
    assert "by their own sleep: 15.00 GiB, the weights." in text
    assert "up to 36.00 GiB if each takes the whole card" in text
    assert "This host has 64.00 GiB to give now." in text


# The command.


def test_models_that_fit_are_resident_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("dummy:qwen3-8b", "herma-tiny", "--card", "80GB")
    status, out, _ = _plan(capsys, *asked)
    assert status == 0
    said = " ".join(out.split())
    assert "All fit at once: dummy:qwen3-8b (16 bits) + builtin:herma-tiny (16 bits):" in said
    assert "residency" not in out
    _, tables = out.split("\n[[workers]]", 1)
    text = "[[workers]]" + tables.replace('"..."', '"org/model"')
    assert find_mistakes(text, "plan") == []
    assert [one["kv_tokens"] for one in tomllib.loads(text)["workers"]] == [40_960, 65_536]


def test_models_that_do_not_fit_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("dummy:qwen3-8b", "dummy:qwen3.6-27b", "--card", "24GB", "--window", "32768")
    status, out, _ = _plan(capsys, *asked)
    assert status == 0
    assert "They do not all fit at once. Resident together:" in out
    sets = re.findall(r"^- dummy:(\S+) \(", out, re.MULTILINE)
    assert sets == ["qwen3-8b", "qwen3.6-27b"]
    assert "They take turns" in out
    text = "[[models]]" + out.split("\n[[models]]", 1)[1].replace('"..."', '"org/model"')
    assert find_mistakes(text, "plan") == []
    found = tomllib.loads(text)
    assert [one["residency"] for one in found["models"]] == ["on-demand"] * 2
    assert {one["device"] for one in found["workers"]} == {"cuda:0"}
    assert [one["serves"] for one in found["workers"]] == [one["name"] for one in found["models"]]


def test_a_need_is_the_card_on_which_a_plan_of_the_model_alone_has_a_window(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A need is, to the MiB, the card on which a plan of the model alone has a window: with 8 MiB
    less the window is cut.
    """
    _, out, _ = _plan(capsys, "dummy:qwen3-8b", "dummy:qwen3-8b", "--card", "80GB")
    row = next(line.split() for line in out.splitlines() if " fp8  " in line and " -  " in line)
    gib = float(row[row.index("GiB") - 1])
    for less, whole in ((-0.01, True), (0.01, False)):
        _, alone, _ = _plan(capsys, "dummy:qwen3-8b", "--card", f"{gib - less:.4f}GiB")
        line = next(one for one in alone.splitlines() if one.startswith("balanced    fp8      - "))
        assert (line.split()[4] == "40,960" and "MiB" not in line) is whole


def test_a_model_that_fits_nowhere_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("dummy:qwen3-8b", "dummy:qwen3.6-27b", "--card", "12GB", "--window", "8192")
    status, out, _ = _plan(capsys, *asked)
    assert status == 1
    said = " ".join(out.split())
    assert "dummy:qwen3.6-27b does not fit, not even alone:" in said
    assert "(8,192 tokens; --window asks for less)" in said
    assert "[[workers]]" not in out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--cards", "2"), "--cards is for one model"),
        (("--speculation", "/some/drafter"), "one model's"),
        (("--window", "99999999"), "--window 99999999 is over that of"),
        (("herma-tiny",) * 8, "at most 8 models"),
        (("--formats",), "leave MODEL out"),
    ],
)
def test_what_several_models_cannot_have_is_refused(
    more: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, error = _plan(capsys, "herma-tiny", "dummy:qwen3-8b", *more)
    assert (status, out) == (2, "")
    assert words in error
