"""The choice of a rule by the prompt's text."""

from workers.replay.rule_match import Casting, last_user_text
from workers.replay.script import Rule, Script

PROMPT = (
    "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    "<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>user\nAdd 2 and 3<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def casting(*rules: Rule) -> Casting:
    return Casting(Script(rules=rules))


def test_the_last_user_text_is_what_stands_between_the_marks() -> None:
    """Not the earlier one; without marks it is all of the prompt."""
    script = Script(rules=())
    assert last_user_text(PROMPT, script) == "Add 2 and 3"
    assert last_user_text("plain text", script) == "plain text"
    assert last_user_text("[U]a[/U]b", Script(rules=(), user_mark="[U]", end_mark="[/U]")) == "a"


def test_the_first_rule_that_fits_is_taken() -> None:
    """By a part of the text, by an expression, in the last user text or the whole prompt."""
    hello, digits = Rule(answer="1", contains="Hello"), Rule(answer="2", matches=r"\d and \d")
    assert casting(hello, digits, Rule(answer="3")).choose(PROMPT) == 1
    assert casting(Rule(answer="1", contains="Hello", where="prompt"), digits).choose(PROMPT) == 0
    assert casting(hello).choose(PROMPT) is None
    both = Rule(answer="4", contains="Add", matches="Hello")
    assert casting(both).choose(PROMPT) is None


def test_a_rule_with_times_is_used_up() -> None:
    """After so many answers the next one that fits has its turn."""
    cast = casting(Rule(answer="1", times=2), Rule(answer="2", times=1))
    assert [cast.choose(PROMPT) for _ in range(4)] == [0, 0, 1, None]
    assert cast.fitting(PROMPT) == [0, 1]
