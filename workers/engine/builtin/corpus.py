"""The text that the built-in tokenizer is trained on.

Owns how word lists, prose, code and JSON are mixed. Deterministic: the same bytes on every host.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any, Final

from workers.engine.builtin.passages import CODE, PROSE
from workers.engine.builtin.words import word_lists

_REPEATS: Final = {"common": 60, "general": 12, "technical": 7, "suffixed": 6}
"""How often each word occurs: natural text repeats its short words far more often."""

_PASSAGE_REPEATS: Final = 8
_NUM_TOOLS: Final = 240
_WORDS_PER_LINE: Final = 12


def corpus() -> Iterator[str]:
    """About a megabyte in lines and passages."""
    lists = word_lists()
    for name, repeats in _REPEATS.items():
        words = lists[name]
        for _ in range(repeats):
            yield from _lines(words)
        yield from _lines([word.capitalize() for word in words])
        yield from _identifiers(words)
    for passage in (*PROSE, *CODE):
        for _ in range(_PASSAGE_REPEATS):
            yield passage
    for index in range(_NUM_TOOLS):
        yield json.dumps(_tool(lists["keys"], index))
        yield json.dumps(_message(lists["keys"], index), separators=(",", ":"))


def _lines(words: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(words), _WORDS_PER_LINE):
        line = " ".join(words[start : start + _WORDS_PER_LINE])
        yield f" {line}, {words[start]}."


def _identifiers(words: Sequence[str]) -> Iterator[str]:
    """Words without a space before them, as in names, paths and quoted text."""
    for start in range(0, len(words) - 3, 4):
        a, b, c, d = words[start : start + 4]
        yield f'{a}_{b}.{c} "{d}" /{a}/{b}/{c}-{d} ({a}) {b}={c}'


def _tool(keys: Sequence[str], index: int) -> dict[str, Any]:
    names = list(islice(cycle(keys), index, index + 5))
    passage = PROSE[index % len(PROSE)].replace("\n", " ").strip()
    described: dict[str, Any] = {"type": "string", "description": passage[: 80 + index]}
    properties: dict[str, Any] = {
        names[0]: described,
        names[1]: {"type": "integer", "description": passage[-60:], "default": index, "minimum": 1},
        names[2]: {"type": "boolean", "default": False},
        names[3]: {"type": "array", "items": {"type": "string", "enum": names}},
        names[4]: {"type": "object", "properties": {names[0]: described}, "required": [names[0]]},
    }
    parameters = {"type": "object", "properties": properties, "required": names[:2]}
    function = {"name": "_".join(names[:2]), "description": passage, "parameters": parameters}
    return {"type": "function", "function": function}


def _message(keys: Sequence[str], index: int) -> dict[str, Any]:
    names = list(islice(cycle(keys), index, index + 3))
    code = CODE[index % len(CODE)]
    arguments = json.dumps({names[0]: f"/home/user/{names[1]}", names[2]: code[: 50 + index]})
    call = {"name": names[0], "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"function": call}]}
