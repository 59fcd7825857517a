"""An engine without a model: it says what its script tells it to, when it tells it to.

Owns the parts that are being played, and the ends of the process that a script asks for.
Scheduling, blocks and limits are those of every engine. Must not import torch.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NoReturn, final

from tokenizers import Tokenizer

from config import WorkerConfig
from protocol.errors import ConfigError
from protocol.messages import TokenLogprobs
from protocol.sampling import SamplingParams
from workers.ipc import PROBE_PROMPT
from workers.model_dir import read_eos_ids
from workers.replay.model_dir import engine_facts, find_model_dir
from workers.replay.playback import Line, Part
from workers.replay.rule_match import Casting
from workers.replay.script import Rule, Script, load_script
from workers.scheduler import Chunk, Sampled, SequenceStart, StepPlan, StepResult

MAX_REST_S: Final = 0.5
"""A step comes at least so often, so that long waits are not taken for a hung engine."""
_MIN_REST_S: Final = 0.001
"""After a step in which nobody could speak: the next one would be no different."""
_DEATH_EXIT_CODE: Final = 1
_CANARY_RULE: Final = Rule(answer="", finish="hang")


@final
class ScriptedRunner:
    """The runner's seam without a model. `collect` never waits: `rest_s` says when it is worth
    calling, so that a frame can come first.
    """

    lookahead: Final = 0
    has_pending_captures: Final = False

    def __init__(
        self,
        config: WorkerConfig,
        model_dir: Path,
        script: Script,
        *,
        epoch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises `ConfigError` for a model that the script cannot be played with."""
        self.model_dir = model_dir
        self.facts = engine_facts(config, model_dir)
        eos_ids = read_eos_ids(model_dir)
        if not eos_ids:
            raise ConfigError(f"{model_dir} names no eos_token_id, so no answer could end")
        self.eos_ids = frozenset(eos_ids)
        self._end_id = eos_ids[0]
        self._tokenizer = _tokenizer(model_dir)
        self._script = script
        self._casting = Casting(script)
        self._answers = [self._encode(rule.answer) for rule in script.rules]
        self._epoch = epoch
        self._clock = clock
        self._parts: dict[int, tuple[Part | str, SamplingParams]] = {}
        self._has_spoken = True

    def rest_s(self) -> float:
        """Seconds until somebody has something to say."""
        due_at = min(
            (part.due_at for part, _ in self._parts.values() if isinstance(part, Part)), default=0.0
        )
        least_s = 0.0 if self._has_spoken else _MIN_REST_S
        return min(max(due_at - self._clock(), least_s), MAX_REST_S)

    def prepare(self, *, wished_only: bool) -> bool:  # noqa: ARG002 - the seam's
        """There is nothing to prepare."""
        return False

    def launch(self, plan: StepPlan) -> StepPlan:
        """Nothing is done before it is waited for."""
        return plan

    def collect(self, plan: StepPlan) -> StepResult:
        """What is due by now of all sampling chunks of `plan`."""
        now = self._clock()
        for seq in plan.ended:
            self._parts.pop(seq, None)
        for start in plan.started:
            self._parts[start.seq] = (self._cast(start, now), start.sampling)
        sampled: list[Sampled] = []
        failed: list[tuple[int, str]] = []
        for chunk in plan.chunks:
            if chunk.samples:
                line = self._line(chunk, now)
                if line.error is not None:
                    failed.append((chunk.seq, line.error))
                else:
                    sampled.append(self._sampled(chunk, line.ids))
        self._has_spoken = bool(plan.started or failed or any(item.ids for item in sampled))
        return StepResult(plan.step, tuple(sampled), tuple(failed))

    def _line(self, chunk: Chunk, now: float) -> Line:
        part, _ = self._parts[chunk.seq]
        if isinstance(part, str):
            return Line(error=part)
        if part.due_at > now:
            return Line()
        line = part.next_line()
        if line.die is not None:
            _die(line.die)
        return line

    def _sampled(self, chunk: Chunk, ids: tuple[int, ...]) -> Sampled:
        _, sampling = self._parts[chunk.seq]
        if sampling.logprobs is None:
            return Sampled(chunk.seq, ids)
        tops = [((token_id, 0.0),) if sampling.logprobs else () for token_id in ids]
        return Sampled(chunk.seq, ids, tuple(TokenLogprobs(0.0, top) for top in tops))

    def _cast(self, start: SequenceStart, now: float) -> Part | str:
        """The part of a new sequence, or why it gets none."""
        prompt, said = start.token_ids[: start.num_prompt], start.token_ids[start.num_prompt :]
        if tuple(prompt) == PROBE_PROMPT:
            answer = array("I", PROBE_PROMPT)
            return Part(_CANARY_RULE, answer, None, num_said=len(said), now=now, may_die=False)
        text = self._tokenizer.decode(prompt.tolist(), skip_special_tokens=False)
        index = self._continuing(text, said) if said else self._casting.choose(text)
        if index is None:
            return f"no rule of the script fits the prompt that ends with {text[-200:]!r}"
        rule = self._script.rules[index]
        return Part(
            rule,
            self._answers[index],
            self._end_id,
            num_said=len(said),
            now=now,
            may_die=self._epoch <= rule.die_starts,
        )

    def _continuing(self, text: str, said: array[int]) -> int | None:
        """The rule whose answer begins with what an earlier attempt has said."""
        for index in self._casting.fitting(text):
            answer = self._answers[index]
            if self._script.rules[index].finish == "length":
                answer = answer * (len(said) // len(answer) + 1)
            if answer[: len(said)] == said:
                return index
        return None

    def _encode(self, answer: str) -> array[int]:
        return array("I", self._tokenizer.encode(answer, add_special_tokens=False).ids)


def load_scripted(
    config: WorkerConfig, report: Callable[[str, float, str], None], *, epoch: int
) -> ScriptedRunner:
    """The runner for `config`, in that start of the engine. Raises `ConfigError`."""
    if config.script is None:
        raise ConfigError(f"worker `{config.name}`: the scripted engine needs a `script`")
    script = load_script(Path(config.script).expanduser())
    model_dir = find_model_dir(config)
    report("tokenizer", 0.5, str(model_dir))
    return ScriptedRunner(config, model_dir, script, epoch=epoch)


def _tokenizer(model_dir: Path) -> Tokenizer:
    path = model_dir / "tokenizer.json"
    try:
        return Tokenizer.from_buffer(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def _die(how: Literal["kill", "exit", "hang"]) -> NoReturn:
    print(f"the script ends this engine: {how}", file=sys.stderr)
    sys.stderr.flush()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(_DEATH_EXIT_CODE)
    while True:
        time.sleep(MAX_REST_S)
