"""Variants of a phrase: case, punctuation, courtesy.

They are made once, at import. Must not know what fills the placeholders.
"""

from typing import Final

_COURTESIES: Final = ("Please ", "Could you ", "Can you ", "Would you please ", "Now ", "Hey, ")


def phrases(*templates: str) -> tuple[str, ...]:
    """Each template unchanged (twice, so that half of the draws are well formed), with a small
    first letter, and without its last character.
    """
    return tuple(
        variant
        for template in templates
        for variant in (template, template, _small(template), _open_end(template))
    )


def requests(*templates: str) -> tuple[str, ...]:
    """Commands, as `phrases`, also as polite requests. A command must not ask a question."""
    return phrases(*templates) + tuple(
        _politely(courtesy, template) for template in templates for courtesy in _COURTESIES
    )


def _politely(courtesy: str, template: str) -> str:
    asked = courtesy + _small(template)
    if courtesy.startswith(("Could", "Can", "Would")) and asked.endswith("."):
        return asked[:-1] + "?"
    return asked


def _small(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _open_end(text: str) -> str:
    return text[:-1] if text[-1:] in ".?!" else text.lower() if "{" not in text else text
