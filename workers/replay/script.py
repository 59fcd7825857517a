"""The script of a scripted engine: which prompts get which answers, and how.

Owns the file's form, its strict reading (a mistake is one line that names the file and the rule)
and the matching of rules. Must not know tokens, engines or clocks: prompts are text here.
"""

import difflib
import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal, final

import msgspec

from protocol.errors import ConfigError

_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_Millis = Annotated[float, msgspec.Meta(ge=0, le=3_600_000)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]

MAX_SCRIPT_BYTES: Final = 16 * 2**20


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[rules]]`: the first rule that fits a prompt gives its answer.

    It fits if `contains` occurs and `matches` (a regular expression) is found in the last user
    text, or in the whole prompt with `where = "prompt"`; without either it fits every prompt.
    `times`: for the first `times` answers of one engine start, then never again.

    `answer` is what the model would write, with its own marks around reasoning and calls. It begins
    after `wait_s` and comes in chunks of `chunk_tokens`, `token_ms` for each token. Then it ends
    (`finish = "stop"`), begins again until the limit of the request ("length"), fails ("error") or
    never goes on ("hang").

    `die` ends the engine process when `die_after_tokens` tokens of an answer are out: by
    SIGKILL, with the exit code 1, or by hanging until the supervisor kills it. It happens in the
    first `die_starts` starts of an engine, and not to a sequence that is past that token already.
    """

    answer: str
    name: str = ""
    contains: str | None = None
    matches: str | None = None
    where: Literal["user", "prompt"] = "user"
    times: _Positive | None = None
    wait_s: _Seconds = 0.0
    chunk_tokens: _Positive = 1
    token_ms: _Millis = 0.0
    finish: Literal["stop", "length", "error", "hang"] = "stop"
    die: Literal["kill", "exit", "hang"] | None = None
    die_after_tokens: _Count = 0
    die_starts: _Positive = 1

    def __post_init__(self) -> None:
        if not self.answer and self.finish == "length":
            raise ValueError("an empty answer cannot go on to the limit")
        if self.matches is not None:
            try:
                re.compile(self.matches)
            except re.error as error:
                raise ValueError(f"matches is no regular expression: {error}") from error
        if self.die is None and (self.die_after_tokens, self.die_starts) != (0, 1):
            raise ValueError('die_after_tokens and die_starts need die = "kill", "exit" or "hang"')


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in order, and the marks between which the prompt holds a user's text."""

    rules: tuple[Rule, ...]
    user_mark: str = "<|im_start|>user\n"
    end_mark: str = "<|im_end|>"


def load_script(path: Path) -> Script:
    """The script in a TOML file, or JSON if its name ends so. Raises `ConfigError`."""
    try:
        data = path.read_bytes()
        text = data.decode()
    except OSError as error:
        raise ConfigError(f"cannot read the script {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the script {path} is not UTF-8 text: {error}") from error
    if len(data) > MAX_SCRIPT_BYTES:
        raise ConfigError(f"the script {path} has {len(data)} bytes; {MAX_SCRIPT_BYTES} at most")
    return parse_script(text, str(path), is_json=path.suffix == ".json")


def parse_script(text: str, source: str, *, is_json: bool = False) -> Script:
    """Like `load_script`, but reads `text`; `source` names it in errors."""
    try:
        raw: object = json.loads(text) if is_json else tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{source}: not valid {'JSON' if is_json else 'TOML'}: {error}"
        ) from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: a script is a table with `rules`")
    _refuse_unknown(raw, Script, source, "the top level")
    rules, defaults = raw.get("rules"), raw.pop("defaults", {})
    if not isinstance(rules, list) or not rules:
        raise ConfigError(f"{source}: no [[rules]]; each has an `answer` and what it fits")
    if not isinstance(defaults, dict):
        raise ConfigError(f"{source}: [defaults] is no table")
    raw["rules"] = [_rule(rule, defaults, number, source) for number, rule in enumerate(rules, 1)]
    try:
        return msgspec.convert(raw, Script)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from error


def _rule(raw: object, defaults: dict[str, Any], number: int, source: str) -> Rule:
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: rule {number} is no table")
    named = f" ({raw['name']})" if isinstance(raw.get("name"), str) else ""
    place = f"rule {number}{named}"
    _refuse_unknown({**defaults, **raw}, Rule, source, place)
    try:
        return msgspec.convert({**defaults, **raw}, Rule)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {place}: {error}") from error


def _refuse_unknown(
    raw: dict[str, Any], struct: type[msgspec.Struct], source: str, place: str
) -> None:
    known = [field.name for field in msgspec.structs.fields(struct)]
    if struct is Script:
        known.append("defaults")
    for key in raw:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean `{near[0]}`? " if near else ""
            raise ConfigError(
                f"{source}: {place}: unknown key `{key}`; {hint}Known: {', '.join(sorted(known))}"
            )


@final
class RuleMatcher:
    """The rules of one engine start, by their index in the script; counts each rule's answers."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._patterns = [
            None if rule.matches is None else re.compile(rule.matches) for rule in script.rules
        ]
        self._num_answers = [0] * len(script.rules)

    def choose(self, prompt: str) -> int | None:
        """The first rule that fits and has answers left, which counts as one of them."""
        for index in self.fitting(prompt):
            times = self._script.rules[index].times
            if times is None or self._num_answers[index] < times:
                self._num_answers[index] += 1
                return index
        return None

    def fitting(self, prompt: str) -> list[int]:
        """Every rule that fits, used up or not."""
        user = last_user_text(prompt, self._script)
        return [
            index
            for index, rule in enumerate(self._script.rules)
            if self._fits(rule, index, user if rule.where == "user" else prompt)
        ]

    def _fits(self, rule: Rule, index: int, text: str) -> bool:
        if rule.contains is not None and rule.contains not in text:
            return False
        pattern = self._patterns[index]
        return pattern is None or pattern.search(text) is not None


def last_user_text(prompt: str, script: Script) -> str:
    """The text after the last user's mark; the whole prompt if it has none."""
    _, mark, rest = prompt.rpartition(script.user_mark)
    return rest.partition(script.end_mark)[0] if mark else prompt
