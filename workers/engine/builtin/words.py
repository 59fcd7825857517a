"""The vocabulary that the built-in tokenizer is trained on.

Owns reading `words.txt`: what agents, their prompts, their tools and their programs talk about.
Must not know tokenizers.
"""

from importlib.resources import files


def word_lists() -> dict[str, list[str]]:
    """The lists of `words.txt` by their names, from frequent words to rare ones."""
    lists: dict[str, list[str]] = {}
    text = files("workers.engine.builtin").joinpath("words.txt").read_text(encoding="utf-8")
    for section in text.split("[")[1:]:
        name, _, words = section.partition("]")
        lists[name] = words.split()
    return lists
