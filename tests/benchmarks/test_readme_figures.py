"""README's figures are those of the committed reports."""

from pathlib import Path

import pytest

from benchmarks import readme_figures
from benchmarks.readme_figures import README, with_figures


def test_readme_says_what_the_reports_say() -> None:
    assert readme_figures.main(["--check"]) == 0


def test_another_figure_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A digit is enough; writing mends it."""
    text = README.read_text(encoding="utf-8")
    other = tmp_path / "README.md"
    other.write_text(text.replace("66.8", "66.9"), encoding="utf-8")
    monkeypatch.setattr(readme_figures, "README", other)
    assert readme_figures.main(["--check"]) == 1
    assert readme_figures.main([]) == 0
    assert other.read_text(encoding="utf-8") == text == with_figures(text)
