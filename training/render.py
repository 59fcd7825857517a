"""Renders a case as the model reads it, and marks what the model learns to write.

The served chat template renders every case, and the assistant's turns are found in its output. Must
not know tokens.

Trained are the last turn and every earlier turn without reasoning. An earlier turn with reasoning
is rendered without it, as in serving, and training on it would teach to answer without reasoning;
its reasoning is learned from the cases that end with such a turn. So every trained token has the
same context as in serving, and no conversation is repeated turn by turn.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from jinja2.sandbox import ImmutableSandboxedEnvironment

from training.data.example import THINK_CLOSE, TrainingExample

TEMPLATE_NAME: Final = "chat_template.jinja"
TURN: Final = "<|im_start|>"
END_OF_TURN: Final = "<|im_end|>"
ANSWER: Final = f"{TURN}assistant\n"

Piece = tuple[str, bool]
"""A stretch of text, and whether the model is trained to write it."""


class Template:
    """The compiled chat template. Renders as transformers' `apply_chat_template` does."""

    def __init__(self, source: str) -> None:
        self.source = source
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _tojson
        self._template = environment.from_string(source)

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        """The text of a conversation; with `add_generation_prompt`, up to the next answer."""
        return self._template.render(
            messages=messages,
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
        )


def load_template() -> Template:
    """The template for training and serving."""
    return Template(files("training").joinpath(TEMPLATE_NAME).read_text(encoding="utf-8"))


def render(example: TrainingExample, template: Template) -> list[Piece]:
    """The whole case in pieces; joined they are the template's own output.

    Raises `ValueError` for a case whose text contains control tokens, or that has no answer.
    """
    text = template(example.messages, example.tools)
    is_trained = _trained_turns(example)
    pieces: list[Piece] = []
    end = 0
    for trained in is_trained:
        start = text.index(ANSWER, end) + len(ANSWER)
        stop = text.index(END_OF_TURN, start) + len(END_OF_TURN)
        if trained:
            pieces += [(text[end:start], False), (text[start:stop], True)]
            end = stop
        else:
            pieces.append((text[end:stop], False))
            end = stop
    pieces.append((text[end:], False))
    if not is_trained or text.count(ANSWER) != len(is_trained):
        raise ValueError(f"a case of {example.skill} has no answer, or spells control tokens")
    return pieces


def render_prompt(example: TrainingExample, template: Template) -> str:
    """The model's input for the case's answer."""
    return template(example.prompt, example.tools, add_generation_prompt=True)


def _trained_turns(example: TrainingExample) -> list[bool]:
    """For each of the assistant's turns, whether it is trained on."""
    last = len(example.messages) - 1
    return [
        index == last or THINK_CLOSE not in (message.get("content") or "")
        for index, message in enumerate(example.messages)
        if message["role"] == "assistant"
    ]


def _tojson(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
