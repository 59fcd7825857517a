"""Grammars that take their time, in the engine's loop."""

from __future__ import annotations

import queue
from array import array

import msgspec
import pytest

from protocol.messages import Abort, Finished, Grammar, Rejected, Submit
from tests.fakes.gateway_end import submission
from tests.workers.loop.test_loop import CountingRunner, LoopEnd
from workers.ipc.messages import Drained, DrainEngine
from workers.loop import CompiledGrammar, loop
from workers.scheduler import Key

A, B = b"a" * 16, b"b" * 16


class SlowCompiler:
    """Is done with a grammar when the test says so."""

    def __init__(self) -> None:
        self.begun: queue.SimpleQueue[tuple[Key, list[int]]] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[CompiledGrammar] = queue.SimpleQueue()

    def begin(self, key: Key, grammar: Grammar, outputs: array[int]) -> None:
        """Note it."""
        assert grammar.text == "a+"
        self.begun.put((key, outputs.tolist()))

    def take_done(self) -> list[CompiledGrammar]:
        """What the test has put there."""
        found = []
        while not self.done.empty():
            found.append(self.done.get())
        return found


def _with_grammar(name: bytes, **fields: int) -> Submit:
    return msgspec.structs.replace(submission(name, **fields), grammar=Grammar("regex", "a+"))


@pytest.mark.parametrize("lookahead", [0, 1])
def test_others_are_served_while_a_grammar_compiles(lookahead: int) -> None:
    """Others are served while a grammar compiles; its own sequence starts when it is ready, also in
    an engine without other work.
    """
    compiler = SlowCompiler()
    engine = LoopEnd(CountingRunner(lookahead), compiler=compiler)
    engine.send(1, _with_grammar(A))
    key, outputs = compiler.begun.get(timeout=20)
    assert (key, outputs) == ((1, A, 1), [])
    engine.send(1, submission(B))
    assert engine.finished(B).reason == "length"
    assert not [m for _, m in engine.heard if isinstance(m, Finished) and m.request_id == A]
    compiler.done.put(CompiledGrammar(key, object()))
    assert engine.finished(A).reason == "length"
    engine.leave()
    engine.close()


def test_a_bad_grammar_is_rejected_with_its_reason() -> None:
    """The engine goes on."""
    compiler = SlowCompiler()
    engine = LoopEnd(CountingRunner(), compiler=compiler)
    engine.send(1, _with_grammar(A))
    key, _ = compiler.begun.get(timeout=20)
    compiler.done.put(CompiledGrammar(key, None, "no such keyword"))
    rejected = engine.until(Rejected)
    assert rejected == Rejected(A, 1, "grammar", "no such keyword")
    engine.send(1, submission(B))
    assert engine.finished(B).reason == "length"
    engine.leave()
    engine.close()


def test_a_draining_engine_waits_for_the_compiler() -> None:
    """The sequence was taken, so it is served."""
    compiler = SlowCompiler()
    engine = LoopEnd(CountingRunner(), compiler=compiler)
    engine.send(1, _with_grammar(A))
    key, _ = compiler.begun.get(timeout=20)
    engine.control(DrainEngine())
    engine.send(1, submission(B))
    engine.finished(B)
    assert not [m for _, m in engine.heard if isinstance(m, Drained)]
    compiler.done.put(CompiledGrammar(key, object()))
    engine.finished(A)
    engine.until(Drained)
    engine.leave()
    engine.close()


def test_grammars_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients come and leave while the thread compiles: what they wanted still waits there."""
    monkeypatch.setattr(loop, "MAX_COMPILING", 3)
    compiler = SlowCompiler()
    engine = LoopEnd(CountingRunner(), compiler=compiler)
    for name in (bytes([n]) * 16 for n in range(3)):
        engine.send(1, _with_grammar(name))
        engine.send(1, Abort(name, 1))
    engine.send(1, _with_grammar(A))
    rejected = engine.until(Rejected)
    assert (rejected.request_id, rejected.reason) == (A, "busy")
    keys = [compiler.begun.get(timeout=20)[0] for _ in range(3)]
    for key in keys:
        compiler.done.put(CompiledGrammar(key, object()))
    engine.send(1, submission(B))
    engine.finished(B)
    engine.send(1, msgspec.structs.replace(_with_grammar(A), attempt=2))
    assert compiler.begun.get(timeout=20)[0] == (1, A, 2)
    engine.leave()
    engine.close()
