"""The scripted engine behind its seams, and as a process that dies as its script wants."""

import json
from array import array
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from config import WorkerConfig, parse_config
from protocol.errors import ConfigError
from protocol.messages import Accepted, Fault, Finished, Submit
from protocol.probing import PROBE_PROMPT
from protocol.sampling import SamplingParams
from protocol.tokens import count_tokens, pack_tokens
from tests.fakes.gateway_end import GatewayEnd, open_gateway_end
from tests.fakes.worker_process import worker_process
from workers.model_dir import builtin_dir
from workers.replay.script import Rule, Script
from workers.replay.scripted import MAX_REST_S, ScriptedRunner, load_scripted
from workers.scheduler.plan import Chunk, SequenceStart, StepPlan

MODEL = "builtin:herma-tiny"
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(builtin_dir(MODEL) / "tokenizer.json"))


def ids_of(text: str) -> list[int]:
    ids: list[int] = tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def prompt(user: str) -> list[int]:
    return ids_of(f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n")


class Stage:
    """A runner on a clock that stands until it is moved; sequences are planned one by one."""

    def __init__(self, *rules: Rule, epoch: int = 1) -> None:
        self.now = 100.0
        worker = WorkerConfig("w", MODEL, "m", (), 4, 64, engine="scripted", script="-")
        self.runner = ScriptedRunner(
            worker, builtin_dir(MODEL), Script(rules=rules), epoch=epoch, clock=lambda: self.now
        )
        self._num_steps = 0

    def step(self, *starts: SequenceStart, seqs: tuple[int, ...]) -> dict[int, object]:
        """The ids, or the failure, of each sequence in the next step."""
        self._num_steps += 1
        chunks = tuple(Chunk(seq, 0, 1, (0,), samples=True) for seq in seqs)
        result = self.runner.collect(
            self.runner.launch(StepPlan(self._num_steps, starts, chunks, ()))
        )
        return {**{item.seq: item.ids for item in result.sampled}, **dict(result.failed)}


def start(seq: int, user: str, said: list[int] | None = None) -> SequenceStart:
    ids = prompt(user)
    return SequenceStart(seq, array("I", ids + (said or [])), len(ids), SamplingParams(9), 0)


def test_each_sequence_speaks_when_its_own_time_has_come() -> None:
    """One is ready, the other waits; `rest_s` is the time until the next of them."""
    stage = Stage(Rule(answer="a b", contains="one"), Rule(answer="c", wait_s=0.3))
    ids = ids_of("a b")
    assert stage.step(start(1, "one"), start(2, "two"), seqs=(1, 2)) == {1: (ids[0],), 2: ()}
    assert stage.runner.rest_s() == 0.0
    stage.step(seqs=(1,))
    stage.step(seqs=(1,))
    stage.runner.collect(StepPlan(9, (), (), (1,)))
    assert stage.runner.rest_s() == pytest.approx(0.3)
    stage.now += 0.3
    assert stage.step(seqs=(2,)) == {2: tuple(ids_of("c"))}


def test_a_long_wait_is_taken_in_steps() -> None:
    """A long wait is taken in steps; else the supervisor would take the engine for a hung one."""
    stage = Stage(Rule(answer="c", wait_s=60.0))
    stage.step(start(1, "x"), seqs=(1,))
    assert stage.runner.rest_s() == MAX_REST_S


def test_what_nobody_can_answer_fails_with_its_reason() -> None:
    """No rule fits, or none continues what another attempt has said."""
    stage = Stage(Rule(answer="a b", contains="one"))
    said = stage.step(start(1, "two"), start(2, "one", said=ids_of("zzz")), seqs=(1, 2))
    assert all("no rule of the script fits the prompt" in str(why) for why in said.values())


def test_a_resumed_sequence_takes_the_rule_that_it_began_with() -> None:
    """Although that rule is used up, and another one would fit first."""
    stage = Stage(Rule(answer="x y"), Rule(answer="a b", times=1))
    first, second = ids_of("a b")
    assert stage.step(start(1, "u", said=[first]), seqs=(1,)) == {1: (second,)}


def test_the_health_probe_needs_no_rule() -> None:
    """An engine is ready whatever its script says."""
    stage = Stage(Rule(answer="a", contains="never"))
    health_probe = SequenceStart(1, array("I", PROBE_PROMPT), 4, SamplingParams(4), 0)
    said = [stage.step(health_probe, seqs=(1,)), *(stage.step(seqs=(1,)) for _ in range(3))]
    assert all(len(step[1]) == 1 for step in said)  # type: ignore[arg-type]


def test_the_script_belongs_to_the_engine_that_plays_it() -> None:
    """One without the other is refused with the place in the file."""
    table = '[[workers]]\nname = "w"\nmodel = "m"\nserves = "m"\n'
    for extra in ('engine = "scripted"', 'script = "s.toml"'):
        with pytest.raises(ConfigError, match="belong together"):
            parse_config(table + extra, "f.toml")
    config = parse_config(f'{table}engine = "scripted"\nscript = "/none.toml"', "f.toml")
    with pytest.raises(ConfigError, match="cannot read the script /none"):
        load_scripted(config.workers[0], lambda *_: None, epoch=1)


def submission(request_id: bytes, user: str, said: list[int] | None = None) -> Submit:
    return Submit(
        request_id,
        1,
        "echo",
        pack_tokens(prompt(user)),
        pack_tokens(said or []),
        SamplingParams(max_tokens=64, temperature=0.0),
        seed=0,
    )


async def answer(gateway: GatewayEnd, submit: Submit) -> tuple[list[int], Finished]:
    gateway.send(submit)
    over = await gateway.wait(Finished, lambda m: m.request_id == submit.request_id)
    return gateway.ids_of(submit.request_id), over


async def test_a_worker_plays_its_script_and_dies_in_it_once(tmp_path: Path) -> None:
    """The answer's tokens, the cache, a death after three tokens, and the rest from a new start."""
    text = "one two three four five six seven eight nine ten"
    rules = [
        {"contains": "fall", "answer": text, "die": "kill", "die_after_tokens": 3},
        {"answer": text, "chunk_tokens": 4},
    ]
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"rules": rules}))
    settings = {"engine": "scripted", "script": str(script), "model": MODEL}
    async with open_gateway_end() as gateway:
        with worker_process(tmp_path, gateway.address, **settings):
            ready = await gateway.wait_ready()
            assert ready.engine is not None
            assert ready.engine.kind == "scripted"
            ids, over = await answer(gateway, submission(A, "speak " * 40))
            assert tokenizer().decode(ids) == text
            assert (over.reason, over.cached_tokens) == ("stop", 0)
            assert [count_tokens(item.ids) for item in gateway.items_of(A)[:2]] == [4, 4]
            _, over = await answer(gateway, submission(B, "speak " * 40))
            assert (over.prompt_tokens, over.cached_tokens) == (128, 96)
            gateway.send(submission(C, "fall"))
            fault = await gateway.wait(Fault)
            assert (fault.exit_code, gateway.ids_of(C)) == (137, ids[:3])
            await gateway.wait_ready(2)
            rest, over = await answer(
                gateway, msgspec.structs.replace(submission(C, "fall", ids[:3]), attempt=2)
            )
            assert (rest, over.reason) == (ids, "stop")
            assert gateway.all_of(Accepted)
