"""The comparison of the built-in model with itself in 8 bits, on a case of two skills."""

import pytest

from benchmarks.tiny_eval import quantised
from benchmarks.tiny_eval.quantised import MOST_LOST, VARIANTS, lost, right_shares, runner_of
from training.data import SKILLS, skill_cases


@pytest.mark.slow
def test_weights_keys_and_values_in_8_bits_answer_as_well() -> None:
    """With weights, keys and values in 8 bits neither of two questions is answered worse."""
    skills = SKILLS[6::6]
    cases = [case for skill in skills for case in skill_cases(skill, 7, 1)]
    shares = {
        name: right_shares(runner_of(VARIANTS[name], "cpu"), cases, lambda _: None)
        for name in ("as they are", "both")
    }
    assert list(shares["both"]) == list(skills)
    assert lost(shares)["both"] <= MOST_LOST
    assert sum(shares["both"].values()) > len(skills) / 2


@pytest.mark.parametrize(("share", "code"), [(0.98, 1), (0.995, 0), (1.0, 0)])
def test_more_than_a_point_lost_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, share: float, code: int
) -> None:
    """A variant in 8 bits fails if it loses more than a point of the mean over skills; variants in
    4 bits are only shown.
    """
    shares = iter([1.0, 1.0, 1.0, share, 0.5])
    monkeypatch.setattr(quantised, "runner_of", lambda *_: None)
    monkeypatch.setattr(quantised, "right_shares", lambda *_: {"json": next(shares)})
    assert quantised.main(["--cases", "1"]) == code
