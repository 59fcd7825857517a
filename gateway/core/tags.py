"""Tags that may be cut anywhere in a stream.

Owns how much of a text's end must be held back for one. Must not know which tags there are.
"""


def tag_overlap(text: str, tag: str) -> int:
    """How many last characters of `text` could be the start of `tag` (whose only "<" is first)."""
    start = text.rfind("<", max(0, len(text) - len(tag) + 1))
    return len(text) - start if start >= 0 and tag.startswith(text[start:]) else 0
