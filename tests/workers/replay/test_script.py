"""The script's form: strict, and every mistake is one line that names its place."""

import json
import re
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from workers.replay.script import (
    Rule,
    RuleMatcher,
    Script,
    last_user_text,
    load_script,
    parse_script,
)

GOOD = """
[defaults]
token_ms = 5

[[rules]]
name = "greeting"
contains = "Hello"
answer = "Hi."

[[rules]]
matches = "[0-9]+"
where = "prompt"
token_ms = 0
answer = "A number."
"""


def test_rules_come_in_order_and_defaults_fill_what_they_leave_out() -> None:
    """A rule's own value stands before the default."""
    script = parse_script(GOOD, "s.toml")
    assert [rule.answer for rule in script.rules] == ["Hi.", "A number."]
    assert [rule.token_ms for rule in script.rules] == [5.0, 0.0]


def test_json_says_the_same(tmp_path: Path) -> None:
    """The file's name tells the form."""
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"rules": [{"answer": "Hi."}], "end_mark": "</s>"}))
    script = load_script(path)
    assert (script.rules[0].answer, script.end_mark) == ("Hi.", "</s>")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rules = [", "s.toml: not valid TOML"),
        ("", r"no \[\[rules\]\]"),
        ("rules = []", r"no \[\[rules\]\]"),
        ("rules = [3]", "rule 1 is no table"),
        ("defaults = 3\n[[rules]]\nanswer = 'x'", r"\[defaults\] is no table"),
        ("speed = 1\n[[rules]]\nanswer = 'x'", "the top level: unknown key `speed`"),
        ("user_mark = 3\n[[rules]]\nanswer = 'x'", "user_mark"),
        (
            "[[rules]]\nanswer = 'x'\n[[rules]]\nname = 'b'\nanswr = 'x'",
            r"rule 2 \(b\): unknown key `answr`; did you mean `answer`",
        ),
        ("[[rules]]\nname = 'b'", r"rule 1 \(b\): .*answer"),
        ("[[rules]]\nanswer = 'x'\nwait_s = -1", "rule 1: .*wait_s"),
        ("[[rules]]\nanswer = 'x'\nmatches = '('", "no regular expression"),
        ("[[rules]]\nanswer = 'x'\ndie_after_tokens = 3", "need die"),
        ("[[rules]]\nanswer = ''\nfinish = 'length'", "empty answer"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, said: str) -> None:
    """Nothing unknown, missing or out of bounds is passed over."""
    with pytest.raises(ConfigError, match=said):
        parse_script(text, "s.toml")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, or no text."""
    with pytest.raises(ConfigError, match="cannot read the script"):
        load_script(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_script(tmp_path / "bytes.toml")


def test_the_example_of_the_page_is_a_script() -> None:
    """What people copy works."""
    page = Path(__file__).parents[3] / "docs" / "engines-without-model.md"
    (example,) = re.findall(r"```toml script\n(.*?)```", page.read_text(), re.DOTALL)
    script = parse_script(example, str(page))
    assert [rule.die for rule in script.rules] == [None, None, "kill"]
    assert "<tool_call>" in script.rules[0].answer


PROMPT = (
    "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    "<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>user\nAdd 2 and 3<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def matcher(*rules: Rule) -> RuleMatcher:
    return RuleMatcher(Script(rules=rules))


def test_the_last_user_text_is_what_stands_between_the_marks() -> None:
    """The last user text, and not the earlier one, is what stands between the marks; without marks
    it is all of the prompt.
    """
    script = Script(rules=())
    assert last_user_text(PROMPT, script) == "Add 2 and 3"
    assert last_user_text("plain text", script) == "plain text"
    assert last_user_text("[U]a[/U]b", Script(rules=(), user_mark="[U]", end_mark="[/U]")) == "a"


def test_the_first_rule_that_fits_is_taken() -> None:
    """The first rule that fits is taken, by a part of the text or by an expression, in the last
    user text or the whole prompt.
    """
    hello, digits = Rule(answer="1", contains="Hello"), Rule(answer="2", matches=r"\d and \d")
    assert matcher(hello, digits, Rule(answer="3")).choose(PROMPT) == 1
    assert matcher(Rule(answer="1", contains="Hello", where="prompt"), digits).choose(PROMPT) == 0
    assert matcher(hello).choose(PROMPT) is None
    both = Rule(answer="4", contains="Add", matches="Hello")
    assert matcher(both).choose(PROMPT) is None


def test_a_rule_with_times_is_used_up() -> None:
    """A rule with `times` is used up after so many answers; then the next one that fits has its
    turn.
    """
    rules = matcher(Rule(answer="1", times=2), Rule(answer="2", times=1))
    assert [rules.choose(PROMPT) for _ in range(4)] == [0, 0, 1, None]
    assert rules.fitting(PROMPT) == [0, 1]
