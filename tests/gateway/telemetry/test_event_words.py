"""Events in one line for people."""

from typing import Any

import msgspec
import pytest

from gateway.telemetry import EngineFault, FleetEvent, words_of


def example_of(kind: Any) -> Any:
    """An event whose fields can be told apart."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.type is float:
            values[field.name] = 2.5
        elif field.type in (int, int | None):
            values[field.name] = 7
        elif field.type is bool:
            values[field.name] = False
        elif field.type == tuple[str, ...]:
            values[field.name] = ("one", "two")
        else:
            values[field.name] = f"the-{field.name}"
    return kind(**values)


@pytest.mark.parametrize("kind", FleetEvent.__args__)
def test_every_kind_has_words(kind: Any) -> None:
    """One line, without a hole."""
    level, text = words_of(example_of(kind))
    assert level in {"good", "info", "warning", "critical"}
    assert text
    assert not set("{}()\n'") & set(text.replace("(epoch 7)", ""))


def test_a_fault_says_whether_the_engine_starts_again() -> None:
    """A fault says whether the engine starts again, so that an operator knows whether to act."""
    level, text = words_of(EngineFault("gpu0", 3, "out_of_memory", 137, is_final=False))
    assert (level, text) == ("warning", "gpu0: out of memory, exit code 137; it starts again")
    cause = "the engine at http://127.0.0.1:8000 is gone: connection refused"
    _, text = words_of(EngineFault("gpu0", 3, "crashed", None, is_final=False, cause=cause))
    assert text == f"gpu0: crashed: {cause}; it starts again"
    cause = "exit code 1: no CUDA-capable device"
    _, text = words_of(EngineFault("gpu0", 3, "driver", 1, is_final=True, cause=cause))
    assert text == "gpu0 has given up: driver: exit code 1: no CUDA-capable device"
    level, text = words_of(EngineFault("gpu0", 3, "out_of_memory", None, is_final=True))
    assert (level, text) == ("critical", "gpu0 has given up: out of memory")
