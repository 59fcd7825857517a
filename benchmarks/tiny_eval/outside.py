"""Prompts unlike the model's training, to check that each answer ends.

Owns more than 500 prompts: outside.txt (written by hand, none of it in the training data), agents'
requests of up to 50 KB with 17 tools, and nonsense symbols. Must not judge answers.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

NUM_JUNK: Final = 110
MAX_AGENT_RULES: Final = 110

_TEXT: Final = Path(__file__).with_name("outside.txt")
_LANGUAGES: Final = ("Python", "C++", "TypeScript", "Kotlin", "Scheme")
_SIGNS: Final = (
    "abcdefghijklmnopqrstuvwxyz", "abc ABC 0123456789 ", "!?.,;:-_#+*~<>|{}[]()/\\\"'`^$%& ",
    "äöüßéèçñøåłż ", "жшщюяфцъыь ", "漢字仮名交文是我不在人有", "🙂🚀🌧🎈 ", "0123456789",
    "aaaaab", " \n\t.",
)  # fmt: skip
_RULE: Final = (
    "Rule {n}: when you {verb} something, say what you changed, check that it worked, and never "
    "touch what you were not asked to touch. If a step fails, look at its output before you try "
    "the next likely remedy. "
)
_VERBS: Final = (
    "inspect", "patch", "browse", "delegate", "remember", "execute", "summarise", "monitor",
    "transcribe", "schedule", "fetch", "clarify", "compress", "publish", "simulate", "audit",
    "rollback",
)  # fmt: skip
_GUIDANCE: Final = (
    "Call this when no cheaper way is left. The result is JSON with the fields ok, output and "
    "error. Long outputs are cut in the middle. Do not repeat a call with the same arguments. "
)

Request = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OutsidePrompt:
    """`request` holds messages and, for agents, tools."""

    kind: str
    request: Request


def outside_prompts() -> list[OutsidePrompt]:
    """All prompts, kind after kind, the same each time."""
    parts = _sections()
    random = Random(500)
    code = [
        task.format(language=language) if "{language}" in task else task
        for task in parts["code"]
        for language in _LANGUAGES
    ]
    texts = {
        "code": code,
        "other languages": parts["languages"],
        "greeted in English": [f"Hello! {text}" for text in parts["languages"]],
        "general": parts["general"],
        "empty or nearly": parts["empty"],
        "signs without sense": [_junk(random) for _ in range(NUM_JUNK)],
    }
    asked = [
        OutsidePrompt(kind, {"messages": [{"role": "user", "content": text}]})
        for kind, some in texts.items()
        for text in some
    ]
    return asked + [
        OutsidePrompt(f"agent, {size}", agent_request(task, num_rules))
        for size, num_rules in (("12 KB", 4), ("49 KB", MAX_AGENT_RULES))
        for task in parts["agent"]
    ]


def _sections() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in _TEXT.read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line[1:-1].isalpha():
            lines = sections.setdefault(line[1:-1], [])
        else:
            lines.append(line)
    return sections


def _junk(random: Random) -> str:
    signs = random.choice(_SIGNS)
    return "".join(random.choice(signs) for _ in range(random.randint(1, 300)))


def agent_request(task: str, num_rules: int) -> Request:
    """The first call of an agent with 17 tools; 49 KB of JSON with `MAX_AGENT_RULES`."""
    rules = "".join(
        _RULE.format(n=n, verb=_VERBS[n % len(_VERBS)]) for n in range(1, num_rules + 1)
    )
    repeats = 1 + num_rules // 20
    system = f"You are an agent at work on somebody's machine.\n\n{rules}"
    return {
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": task}],
        "tools": [_tool(verb, repeats) for verb in _VERBS],
    }


def _tool(verb: str, repeats: int) -> dict[str, Any]:
    target = {"type": "string", "description": f"What to {verb}. {_GUIDANCE}"}
    mode = {"type": "string", "enum": ["fast", "careful"]}
    function = {
        "name": f"{verb}_target",
        "description": f"{verb.capitalize()} a target. {_GUIDANCE * repeats}",
        "parameters": {
            "type": "object",
            "properties": {"target": target, "mode": mode},
            "required": ["target"],
        },
    }
    return {"type": "function", "function": function}
