"""Schemas whose references lead to the same part in more ways than there is time for."""

import sys
from types import FrameType
from typing import Any

import pytest

from gateway.output.tools.schema_parts import SchemaParts

MOST = 2**14


def _levels(num: int, last: dict[str, Any], *ways: dict[str, Any], word: str) -> dict[str, Any]:
    """A schema of `num` definitions, each of which leads to the next one in all these ways."""
    definitions = {f"d{num}": last}
    for at in range(num):
        following = {"$ref": f"#/$defs/d{at + 1}"}
        definitions[f"d{at}"] = {word: [{**following, **way} for way in ways]}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def _read(root: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str], int]:
    """The alternatives, what was left out, and how often a reference was followed."""
    followed = 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal followed
        followed += event == "call" and frame.f_code.co_name == "resolved"

    told: list[str] = []
    sys.setprofile(look)
    try:
        found = list(SchemaParts(root).alternatives({"$ref": "#/$defs/d0"}, told.append))
    finally:
        sys.setprofile(None)
    return found, told, followed


@pytest.mark.parametrize("num", [2, 3])
def test_each_way_is_an_alternative(num: int) -> None:
    ways = [{"minimum": 1}, {"maximum": 2}]
    found, told, _ = _read(_levels(num, {"type": "integer"}, *ways, word="anyOf"))
    assert len(found) == 2**num
    assert not told


def test_alternatives_are_bounded_and_what_is_left_out_is_told() -> None:
    """Six ways through each of seven definitions are 279,936 ways."""
    ways = [{"minimum": number} for number in range(6)]
    found, told, followed = _read(_levels(7, {"type": "integer"}, *ways, word="anyOf"))
    assert 1_000 < len(found) <= MOST
    assert followed <= MOST
    assert told


def test_joined_parts_are_bounded_and_what_is_left_out_is_told() -> None:
    """Two ways through each of 16 definitions are 65,536 ways to one schema."""
    ways = [{"minLength": 1}, {"maxLength": 9}]
    found, told, followed = _read(_levels(16, {"type": "string"}, *ways, word="allOf"))
    assert len(found) == 1
    assert followed <= MOST
    assert "allOf" in told
