"""Schemas of real MCP servers and of zod: none is refused, and what is written is valid.

`make test-schemas` lists them; without that there is nothing to test.
"""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.api import schema_source
from tests.fakes.grammar_walks import Walker, check_valid

NUM_ENDED = int(os.environ.get("HERMA_WALKS", "2000"))
LEAST_TOOLS = 240
LEAST_TYPES = 73

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", name="schemas")
def _schemas() -> list[dict[str, Any]]:
    folder = os.environ.get("HERMA_SCHEMAS_DIR")
    if folder is None:
        pytest.skip("HERMA_SCHEMAS_DIR is not set")
    found: list[dict[str, Any]] = json.loads(Path(folder, "schemas.json").read_text())
    return found


def test_none_is_refused_and_walks_are_valid(schemas: list[dict[str, Any]]) -> None:
    """No schema is refused and walks are valid in the lenient form; a strict one is refused with a
    place, or valid as well.
    """
    walker, rng = Walker(), random.Random(11)
    num_types = sum(one["source"].startswith("zod") for one in schemas)
    assert len(schemas) - num_types >= LEAST_TOOLS
    assert num_types >= LEAST_TYPES
    num_strict = 0
    walks: list[tuple[str, dict[str, Any], Any]] = []
    for one in schemas:
        for is_strict in (False, True):
            made = schema_source(one["schema"], "f", is_strict=is_strict, is_lenient=not is_strict)
            if is_strict and made.left_out:
                assert made.left_out[0].pointer.startswith("/")
                continue
            num_strict += is_strict
            assert not walker.refusal(made.text), (one["source"], one["name"])
            walks.append((made.text, one["schema"], made.left_out))
    num_ended = 0
    for text, schema, left_out in _forever(walks):
        written = walker.walk(text, rng)
        if written is not None:
            check_valid(written, schema, left_out)
            num_ended += 1
            if num_ended == NUM_ENDED:
                break
    print(
        f"{len(schemas) - num_types} tools and {num_types} types of zod: none refused, "
        f"{num_strict} of {len(schemas)} also strict; {num_ended} ended walks are valid"
    )


def _forever(walks: list[Any]) -> Iterator[Any]:
    while True:
        yield from walks
