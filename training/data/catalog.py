"""Tools that many clients have, with everyday requests for them. For training only.

Reads words/catalog.txt. Beyond the invented tools it teaches other words for the same request:
"will it rain" is about the weather.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from training.data.example import Tool
from training.data.pools import WEEKDAYS
from training.data.world import World


@dataclass(frozen=True, slots=True)
class Familiar:
    """A tool as clients send it, a question, and the arguments of the right call."""

    tool: Tool
    name: str
    topic: str
    question: str
    arguments: dict[str, Any]


@dataclass(slots=True)
class _Entry:
    topic: str
    names: list[str] = field(default_factory=list)
    does: list[str] = field(default_factory=list)
    takes: list[list[tuple[str, str]]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


_COMMANDS: Final = (
    "echo hello", "ls -la", "pwd", "git status", "date", "whoami", "make test", "uname -a",
    "df -h", "git log", "python main.py", "npm install", "cat notes.txt", "ls", "uptime",
    "pip list", "git diff", "echo {w}", "cd {w}", "mkdir {w}", "rm {w}.txt", "touch {w}",
    "grep {w} notes.txt", "echo {w} {w2}", "python {w}.py", "cat {w}.md",
)  # fmt: skip
_CURRENCIES: Final = ("euros", "dollars", "yen", "pounds", "EUR", "USD", "JPY", "GBP", "CHF")
_LANGUAGES: Final = (
    "German", "French", "Spanish", "Italian", "Dutch", "Polish", "Japanese", "Greek",
)  # fmt: skip
_ROOMS: Final = ("kitchen", "bedroom", "hall", "cellar", "garage", "garden", "bathroom", "office")
_UNITS: Final = ("celsius", "fahrenheit")
_FOLDERS: Final = ("/", "/home/", "./", "/data/")
_ENDINGS: Final = (".txt", ".md", ".py", ".json")


def draw_familiar(world: World) -> Familiar:
    """One tool, and a question that asks for it."""
    entry = world.pick(_entries())
    params = world.pick(entry.takes)
    question = world.pick(entry.asked)
    arguments: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for index, (key, kind) in enumerate(params):
        properties[key] = _schema(key, kind)
        if f"{{{index}}}" in question:
            arguments[key] = _VALUES[kind](world)
    required = list(arguments)
    question = question.format(*(arguments.get(key) for key, _ in params))
    if params[-1][1] == "unit" and world.chance(0.5):
        arguments["unit"] = world.pick(_UNITS)
        question = f"{question.rstrip('?.')} in {arguments['unit']}?"
    name = world.pick(entry.names)
    function = {
        "name": name,
        "description": world.pick(entry.does) + world.pick((".", ".", "")),
        "parameters": {"type": "object", "properties": properties, "required": required},
    }
    tool = {"type": "function", "function": function}
    return Familiar(tool, name, entry.topic, question, arguments)


@lru_cache
def _entries() -> tuple[_Entry, ...]:
    text = (Path(__file__).parent / "words" / "catalog.txt").read_text(encoding="utf-8")
    entries: list[_Entry] = []
    for line in text.splitlines():
        key, _, rest = line.partition(": ")
        match key:
            case "names":
                entries[-1].names = rest.split()
            case "does":
                entries[-1].does = rest.split("|")
            case "takes":
                entries[-1].takes = [_params(one) for one in rest.split("|")]
            case "asked":
                entries[-1].asked.append(rest)
            case _:
                entries += [_Entry(line.strip("[]"))] if line.startswith("[") else []
    return tuple(entries)


def _params(text: str) -> list[tuple[str, str]]:
    pairs = [one.partition(":") for one in text.split()]
    return [(key, kind) for key, _, kind in pairs]


def _schema(key: str, kind: str) -> dict[str, Any]:
    if kind == "unit":
        return {"type": "string", "enum": list(_UNITS)}
    type_ = "integer" if kind == "small" else "string"
    return {"type": type_, "description": f"The {key.replace('_', ' ')}."}


def _sum(world: World) -> str:
    return f"{world.between(2, 9999)} {world.pick('+-*/')} {world.between(2, 9999)}"


def _ticker(world: World) -> str:
    letters = "ABCDEFGHIKLMNOPRSTUVWXYZ"
    return "".join(world.pick(letters) for _ in range(world.between(3, 4)))


def _path(world: World) -> str:
    return world.pick(("", *_FOLDERS)) + world.noun() + world.pick(_ENDINGS)


def _words(world: World, low: int, high: int) -> str:
    return " ".join(world.word() for _ in range(world.between(low, high)))


_VALUES: Final[dict[str, Callable[[World], Any]]] = {
    "place": World.place,
    "name": World.name,
    "word": World.noun,
    "sum": _sum,
    "ticker": _ticker,
    "path": _path,
    "small": lambda world: world.between(1, world.pick((10, 60, 500))),
    "email": lambda world: f"{world.name().lower()}@{world.word()}.com",
    "folder": lambda world: world.pick(_FOLDERS) + world.noun(),
    "command": lambda world: world.pick(_COMMANDS).format(w=world.noun(), w2=world.word()),
    "time": lambda world: f"{world.between(0, 23)}:00",
    "words": lambda world: _words(world, 1, 3),
    "quoted": lambda world: _words(world, 2, 6),
    "currency": lambda world: world.pick(_CURRENCIES),
    "language": lambda world: world.pick(_LANGUAGES),
    "room": lambda world: world.pick(_ROOMS),
    "day": lambda world: world.pick(WEEKDAYS),
}
