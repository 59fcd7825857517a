"""The examples in our pages: blocks of code that are followed by a block of what they print."""

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

PAGES = Path(__file__).parents[2] / "docs/clients"
URL = "http://127.0.0.1:8080"
MODEL = '"herma-tiny"'
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Example(NamedTuple):
    """`language` is what stands behind the fence."""

    language: str
    code: str
    printed: str

    def at(self, root_url: str, model: str) -> str:
        """The code for a gateway and a model that a test has."""
        assert URL in self.code
        return self.code.replace(URL, root_url).replace(MODEL, f'"{model}"')


def examples(page: str, *languages: str) -> list[Example]:
    """The examples of a page about a client, in these languages."""
    blocks: list[tuple[str, str]] = _BLOCK.findall((PAGES / page).read_text(encoding="utf-8"))
    return [
        Example(language, code, printed)
        for (language, code), (following, printed) in pairwise(blocks)
        if following == "text" and language in languages
    ]
