"""Sequences with a grammar in the steps of an engine, beside others."""

import json
from array import array
from typing import Any

import msgspec
import pytest
import torch
from tokenizers import Tokenizer

from benchmarks.drive import Drive, fresh_runner
from protocol.messages import Finished, Grammar, Submit, Tokens
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens
from tests.fakes.drafts import CardDrafts, HostDrafts, KnownDrafter, Mood
from tests.fakes.pairs import each_once, seldom
from tests.fakes.tiny_models import load_tiny
from workers.engine.grammar.compiler import LlGuidanceCompiler
from workers.engine.grammar.sequence_grammar import SequenceGrammar
from workers.engine.graphs.capture import run_again
from workers.engine.graphs.device_steps import DeviceSteps
from workers.engine.runner import ModelRunner
from workers.engine.step import sampler
from workers.engine.step.host_steps import HostSteps
from workers.model_dir import builtin_dir
from workers.scheduler import BlockManager, Scheduler, SchedulerLimits

DIGITS = Grammar("regex", "[0-9]{12}")
LONG = Grammar("regex", "[a-z ]{300}")
OBJECT = Grammar(
    "json_schema",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "kind": {"enum": ["one", "two", "three"]},
                "numbers": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
            },
            "required": ["name", "kind", "numbers"],
            "additionalProperties": False,
        }
    ),
)
PROMPT = list(range(20, 110))
DRAWN = SamplingParams(max_tokens=300)
STYLES: dict[str, SamplingParams] = {
    "drawn": DRAWN,
    "greedy": SamplingParams(max_tokens=300, temperature=0.0),
    "filtered": SamplingParams(max_tokens=300, top_k=40, top_p=0.9, min_p=0.01),
    "penalised": SamplingParams(
        max_tokens=300, presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.1
    ),
    "with logprobs": SamplingParams(max_tokens=300, logprobs=3),
}


def _text(drive: Drive, number: int, tokenizer: Tokenizer) -> str:
    return str(tokenizer.decode(drive.answers[number].outputs, skip_special_tokens=False))


def _up_to(style: SamplingParams, max_tokens: int) -> SamplingParams:
    """This style, with another limit."""
    return msgspec.structs.replace(style, max_tokens=max_tokens)


@pytest.fixture(params=["host steps", "device steps"])
def either(request: pytest.FixtureRequest, runner: ModelRunner) -> ModelRunner:
    """A runner of each kind of step; that of a card, on the CPU."""
    if request.param == "host steps":
        return runner
    steps = DeviceSteps(runner.model, runner.cache, runner.facts, run_again)
    return ModelRunner(runner.model, runner.cache, runner.facts, runner.model_dir, steps)


@pytest.mark.parametrize(
    ("style", "either"),
    each_once([*STYLES], ["host steps", "device steps"]),
    indirect=["either"],
)
def test_every_style_of_sampling_obeys(
    style: str, either: ModelRunner, compiler: LlGuidanceCompiler, tokenizer: Tokenizer
) -> None:
    """Draws, filters and penalties choose among what is allowed."""
    drive = Drive(either, compiler=compiler)
    numbers = [drive.submit(PROMPT, STYLES[style], seed=n, grammar=OBJECT) for n in range(4)]
    drive.finish()
    for number in numbers:
        answer = drive.answers[number]
        assert answer.finished is not None
        if answer.finished.reason == "length":
            continue
        assert answer.finished.matched is not None
        assert json.loads(_text(drive, number, tokenizer))["kind"] in ("one", "two", "three")


def test_the_others_of_a_step_notice_nothing(
    either: ModelRunner, compiler: LlGuidanceCompiler
) -> None:
    """The others of a step have the tokens that they have alone, whatever they ask for."""
    alone = Drive(fresh_runner(either))
    for seed, style in enumerate(STYLES.values()):
        alone.submit(PROMPT, _up_to(style, 20), seed=seed)
    alone.finish()
    mixed = Drive(fresh_runner(either), compiler=compiler)
    for seed, style in enumerate(STYLES.values()):
        mixed.submit(PROMPT[: 30 + seed], DRAWN, seed=seed, grammar=OBJECT)
        mixed.submit(PROMPT, _up_to(style, 20), seed=seed)
    mixed.finish()
    free = [answer.outputs for answer in mixed.answers.values() if answer.prompt == tuple(PROMPT)]
    assert free == [answer.outputs for answer in alone.answers.values()]


@pytest.mark.parametrize("num_blocks", [None, 14])
def test_a_step_ahead_changes_nothing(
    num_blocks: int | None, runner: ModelRunner, compiler: LlGuidanceCompiler
) -> None:
    """Each network runs before the token before it is known, and each draw after: alone, beside
    sequences of all styles, preempted, and where a grammar begins and ends in the middle.
    """
    outputs = []
    for looks_ahead in (False, True):
        steps = DeviceSteps(runner.model, runner.cache, runner.facts, run_again)
        fresh = fresh_runner(runner)
        device = ModelRunner(fresh.model, fresh.cache, fresh.facts, fresh.model_dir, steps)
        drive = Drive(device, num_blocks=num_blocks, compiler=compiler, looks_ahead=looks_ahead)
        _submit_all(drive)
        drive.finish()
        assert num_blocks is None or drive.num_preemptions > 0
        outputs.append([answer.outputs for answer in drive.answers.values()])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("is_card", [False, True])
def test_drafts_change_nothing(
    is_card: bool, runner: ModelRunner, compiler: LlGuidanceCompiler
) -> None:
    """Each row behind a draft has its own mask, and a draft ends at the first refused token."""
    drive = Drive(fresh_runner(runner), compiler=compiler)
    _submit_all(drive)
    drive.finish()
    texts = []
    for answer in drive.answers.values():
        assert answer.finished is not None
        texts.append([*answer.prompt, *answer.outputs, answer.finished.matched or 0])
    fresh = fresh_runner(runner)
    for mood in (Mood.RIGHT, Mood.MIXED):
        drafter = KnownDrafter(texts, 7, mood) if is_card else None
        on_card = DeviceSteps(fresh.model, fresh.cache, fresh.facts, drafter=drafter)
        steps = on_card if is_card else HostSteps(fresh.model, fresh.cache, fresh.facts, drafter)
        proposer = CardDrafts(7) if is_card else HostDrafts(texts, 7, mood, vary=True)
        device = ModelRunner(fresh.model, fresh.cache, fresh.facts, fresh.model_dir, steps)
        drafting = Drive(device, compiler=compiler, looks_ahead=is_card, proposer=proposer)
        _submit_all(drafting)
        drafting.finish()
        for number, answer in drive.answers.items():
            assert drafting.answers[number].outputs == answer.outputs, mood
        assert mood is not Mood.RIGHT or drafting.num_steps < drive.num_steps / 2


def _submit_all(drive: Drive) -> None:
    for seed, style in enumerate(STYLES.values()):
        drive.submit(PROMPT[: 40 + seed], _up_to(style, 40), seed=seed, grammar=OBJECT)
        drive.submit(PROMPT[: 20 + seed], _up_to(style, 30), seed=seed)
    drive.submit(PROMPT[:33], DRAWN, seed=9, grammar=DIGITS)


def test_a_draw_without_memory_is_tried_again_and_fails_its_own_step_alone(
    runner: ModelRunner, compiler: LlGuidanceCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw that waited runs inside the collection of the step before, which it must not fail."""
    steps = DeviceSteps(runner.model, runner.cache, runner.facts, run_again)
    ahead = ModelRunner(runner.model, runner.cache, runner.facts, runner.model_dir, steps)
    drive = Drive(ahead, compiler=compiler, looks_ahead=True)
    number = drive.submit(PROMPT, DRAWN, grammar=DIGITS)
    drive.step()
    drive.step()
    draw, failures = sampler.Sampler.sample, [2]

    def without_memory(*args: Any) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return draw(*args)

    monkeypatch.setattr(sampler.Sampler, "sample", without_memory)
    before = len(drive.answers[number].outputs)
    drive.step()
    assert failures == [0]
    assert len(drive.answers[number].outputs) == before + 1
    with pytest.raises(torch.OutOfMemoryError):
        drive.step()


def test_scarce_blocks_change_nothing(runner: ModelRunner, compiler: LlGuidanceCompiler) -> None:
    """Preempted and computed again, with prefix hits: the same tokens."""
    outputs = []
    for num_blocks in (None, 12):
        drive = Drive(fresh_runner(runner), num_blocks=num_blocks, compiler=compiler)
        for seed in range(5):
            drive.submit(PROMPT[: 50 + seed], DRAWN, seed=seed, grammar=LONG)
        drive.finish()
        outputs.append([answer.outputs for answer in drive.answers.values()])
    assert drive.num_preemptions > 0
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("style", ["drawn", *seldom("penalised")])
def test_another_worker_goes_on_after_every_token(
    style: str, runner: ModelRunner, compiler: LlGuidanceCompiler
) -> None:
    """The answer is the same, wherever the first worker was lost."""
    drive = Drive(fresh_runner(runner), compiler=compiler)
    drive.submit(PROMPT, STYLES[style], seed=3, grammar=OBJECT)
    drive.finish()
    whole = drive.answers[0].outputs
    resumed = Drive(fresh_runner(runner), compiler=compiler)
    for at in range(len(whole)):
        resumed.submit(PROMPT, STYLES[style], outputs=whole[:at], seed=3, grammar=OBJECT)
    resumed.finish()
    assert len(whole) > 12
    assert [answer.outputs for answer in resumed.answers.values()] == [whole] * len(whole)


def test_a_grammar_that_the_model_obeys_anyway_changes_nothing() -> None:
    """Greedy text of the built-in model under any text, and under exactly that text."""
    model = load_tiny(builtin_dir("builtin:herma-tiny"), kv_tokens=4096)
    tokenizer = Tokenizer.from_file(str(model.model_dir / "tokenizer.json"))
    turn = "<|im_start|>user\nHello! Who are you?<|im_end|>\n<|im_start|>assistant\n"
    prompt = tokenizer.encode(turn, add_special_tokens=False).ids
    own = LlGuidanceCompiler(model.model_dir, 4096, model.eos_ids)
    drive = Drive(model, compiler=own)
    greedy = SamplingParams(max_tokens=60, temperature=0.0)
    drive.submit(prompt, greedy)
    drive.finish()
    said = tokenizer.decode(drive.answers[0].outputs, skip_special_tokens=False)
    assert "herma-tiny" in said
    for text in ("(.|\n)*", "".join(f"\\{c}" if c in ".,!?-()" else c for c in said)):
        number = drive.submit(prompt, greedy, grammar=Grammar("regex", text))
        drive.finish()
        assert drive.answers[number].outputs == drive.answers[0].outputs
        assert drive.answers[number].finished is not None
        assert drive.answers[number].finished.reason == "stop"


def test_forced_tokens_are_not_drawn(
    runner: ModelRunner,
    compiler: LlGuidanceCompiler,
    monkeypatch: pytest.MonkeyPatch,
    tokenizer: Tokenizer,
) -> None:
    """Where a grammar leaves one token, the draw is not made."""
    draws = 0
    pick = sampler.pick

    def counted(*given: Any) -> Any:
        nonlocal draws
        draws += 1
        return pick(*given)

    monkeypatch.setattr(sampler, "pick", counted)
    drive = Drive(runner, compiler=compiler)
    text = "0123456789"
    number = drive.submit(PROMPT, DRAWN, grammar=Grammar("regex", text))
    drive.finish()
    assert _text(drive, number, tokenizer) == text
    assert draws < drive.num_steps


def test_raw_log_probabilities_are_reported(
    runner: ModelRunner, compiler: LlGuidanceCompiler
) -> None:
    """Log-probabilities are the model's own, although most of the tokens that it prefers are
    forbidden.
    """
    limits = SchedulerLimits(4, 256, 1024, 4, enforces_grammars=True)
    scheduler = Scheduler(limits, BlockManager(64, 32), ("m",), runner.eos_ids)
    sampling = SamplingParams(max_tokens=3, logprobs=5)
    submit = Submit(bytes(16), 0, "m", pack_tokens(PROMPT), b"", sampling, 1, grammar=DIGITS)
    scheduler.submit(1, submit, 0.0)
    scheduler.compiled((1, bytes(16), 0), compiler.compile(DIGITS, array("I")), "")
    plan = scheduler.plan()
    assert plan is not None
    messages = [m for _, m in scheduler.commit(plan, runner.run(plan)) if isinstance(m, Tokens)]
    (entry,) = messages[0].items[0].logprobs
    assert entry.logprob < entry.top[0][1]
    assert len(entry.top) == 5


class _BreaksBehind:
    """A sequence's grammar, which no token can follow behind so many outputs."""

    def __init__(self, grammar: SequenceGrammar, num_outputs: int) -> None:
        self._grammar = grammar
        self._num_outputs = num_outputs
        self.error = ""

    @staticmethod
    def fill_all(grammars: Any, rows: Any) -> list[int | None]:
        lone = []
        for row, own, outputs in grammars:
            rows[row] = 0
            if len(outputs) >= own._num_outputs:
                own.error = "the grammar cannot be followed: no token can follow"
                lone.append(None)
            else:
                lone.append(own._grammar.fill(outputs, rows[row]))
        return lone


def test_a_grammar_that_breaks_later_ends_its_sequence_alone(
    runner: ModelRunner, compiler: LlGuidanceCompiler
) -> None:
    """A grammar that breaks later ends its sequence alone, with its reason, behind its last token;
    its neighbour goes on.
    """
    limits = SchedulerLimits(4, 256, 1024, 4, enforces_grammars=True)
    scheduler = Scheduler(limits, BlockManager(64, 32), ("m",), runner.eos_ids)
    sampling = SamplingParams(max_tokens=8, ignore_eos=True)
    for number in range(2):
        request_id = bytes([number]) * 16
        tokens = pack_tokens(PROMPT)
        submit = Submit(request_id, 0, "m", tokens, b"", sampling, 1, grammar=DIGITS)
        scheduler.submit(1, submit, 0.0)
        follower: Any = compiler.compile(DIGITS, array("I"))
        if number == 0:
            follower = _BreaksBehind(follower, 3)
        scheduler.compiled((1, request_id, 0), follower, "")
    ends = []
    while (plan := scheduler.plan()) is not None:
        messages = [m for _, m in scheduler.commit(plan, runner.run(plan))]
        ends += [message for message in messages if isinstance(message, Finished)]
    broken, whole = sorted(ends, key=lambda one: one.request_id)
    assert (broken.reason, broken.output_tokens) == ("grammar", 3)
    assert "no token can follow" in broken.detail
    assert (whole.reason, whole.output_tokens) == ("length", 8)
