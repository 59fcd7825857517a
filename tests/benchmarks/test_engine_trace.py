"""The table of a traced run tells steps apart by what they computed, and how."""

from benchmarks.engine.trace import TracedStep, step_table


def _step(rows: int, prefill_tokens: int, *, graph: bool) -> TracedStep:
    return TracedStep(rows, prefill_tokens, graph, *[1.0] * (len(TracedStep._fields) - 3))


def test_steps_with_prompts_are_apart_by_graphs() -> None:
    """A mixed step that replayed a graph is not counted among those launched kernel by kernel."""
    steps = [_step(4, 0, graph=True), _step(4, 0, graph=False)]
    steps += [_step(4, 32, graph=True)] * 3 + [_step(4, 900, graph=False)] * 2
    lines = [line.split(" | ")[:2] for line in step_table(steps).splitlines()]
    assert lines[2:5] == [
        ["| decode, 2-4 rows", "2"],
        ["| with prompts, a graph", "3"],
        ["| with prompts", "2"],
    ]
