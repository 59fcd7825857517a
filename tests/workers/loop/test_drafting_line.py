"""What drafts bring, in a line."""

from protocol.messages import DraftResults
from workers.loop.heartbeat import drafting_line


def test_it_names_the_drafter_and_its_figures() -> None:
    """Places that were never verified have no share; before the first draft there is no line."""
    figures = DraftResults("suffix", 10, 25, (10, 8, 0), (9, 6, 0), 1.84, 1.512)
    assert drafting_line(figures) == (
        "suffix: 2.50 tokens a pass, 83% of 18 drafts accepted (90%/75% by place), "
        "1.8 a pass lately, 1.51 times as fast"
    )
    assert drafting_line(DraftResults("suffix", 0, 0, (0,), (0,), 0.0, 1.0)) == ""
