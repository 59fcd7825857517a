"""An engine without a model: its script says which prompts get which answers, and when.

Owns the playback of answers, and the ends of the process that a script asks for. Scheduling, blocks
and limits are those of every engine. Must not import torch.
"""

from __future__ import annotations

import codecs
import os
import signal
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, NoReturn, final

from config import WorkerConfig
from protocol.errors import ConfigError
from protocol.probing import PROBE_PROMPT
from protocol.sampling import SamplingParams
from workers.loop import Channel
from workers.model_dir import TOKENIZER_NAME, engine_model_dir, read_eos_ids
from workers.replay.runner import ReplayRunner, sampled
from workers.replay.script import Rule, RuleMatcher, Script, load_script
from workers.scheduler import Chunk, Sampled, SequenceStart, StepPlan, StepResult

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_REST_S: Final = 0.5
"""The longest rest between two steps, so that long waits are not taken for a hung engine."""
_MIN_REST_S: Final = 0.001
"""The rest after a step without a token: a step at once would also bring none."""
_DEATH_EXIT_CODE: Final = 1
_NEVER: Final = float("inf")
_PROBE_RULE: Final = Rule(answer="", finish="hang")

Death = Literal["kill", "exit", "hang"]


class ScriptedOutput(NamedTuple):
    """The next output of a sequence: token ids, the reason of its failure, or the end of the
    process.
    """

    ids: tuple[int, ...] = ()
    error: str | None = None
    die: Death | None = None


@final
class Playback:
    """One sequence's way through its rule's answer, from output number `num_outputs` on.

    `due_at` is the time of its next output. `may_die` is False in starts after those that die.
    Seconds come in as arguments.
    """

    def __init__(
        self,
        rule: Rule,
        answer: array[int],
        end_id: int | None,
        *,
        num_outputs: int,
        now: float,
        may_die: bool,
    ) -> None:
        self._rule = rule
        self._answer = answer
        self._end_id = end_id
        self._num_outputs = num_outputs
        self._die_at = rule.die_after_tokens if rule.die is not None and may_die else None
        # A resumed sequence has waited in its earlier attempt.
        self.due_at = now + (0.0 if num_outputs else rule.wait_s)
        if self._die_at is not None and num_outputs >= self._die_at > 0:
            self._die_at = None

    def next_output(self) -> ScriptedOutput:
        """The output that is due. The next one is due `token_ms` later for each token of this
        one.
        """
        if self._num_outputs == self._die_at:
            return ScriptedOutput(die=self._rule.die)
        ids = self._next_ids()
        if not ids:
            if self._rule.finish == "error":
                return ScriptedOutput(
                    error=f"the script's rule {self._rule.name!r} ends with an error"
                )
            self.due_at = _NEVER
            return ScriptedOutput()
        self._num_outputs += len(ids)
        self.due_at += len(ids) * self._rule.token_ms / 1e3
        return ScriptedOutput(ids)

    def _next_ids(self) -> tuple[int, ...]:
        """The next chunk, cut where the process dies; none where the answer breaks off."""
        rule, answer, begin = self._rule, self._answer, self._num_outputs
        most = rule.chunk_tokens
        if self._die_at is not None and begin < self._die_at:
            most = min(most, self._die_at - begin)
        if rule.finish == "length":
            return tuple(answer[index % len(answer)] for index in range(begin, begin + most))
        ids = tuple(answer[begin : begin + most])
        if not ids and rule.finish == "stop" and self._end_id is not None:
            return (self._end_id,)
        return ids


@final
class ScriptedRunner(ReplayRunner):
    """`collect` never waits: `rest_s` says when it is worth calling, so that a frame can come
    first.
    """

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
        super().__init__(config, model_dir)
        if not self.eos_ids:
            raise ConfigError(f"{model_dir} names no eos_token_id, so no answer could end")
        self._end_id = read_eos_ids(model_dir)[0]
        self._tokenizer = _tokenizer(model_dir)
        self._script = script
        self._matcher = RuleMatcher(script)
        self._answers = [self._encode(rule.answer) for rule in script.rules]
        self._epoch = epoch
        self._clock = clock
        self._playbacks: dict[int, tuple[Playback | str, SamplingParams]] = {}
        self._has_output = True

    def rest_s(self) -> float:
        """Seconds until the next output of any sequence."""
        due_at = min(
            (one.due_at for one, _ in self._playbacks.values() if isinstance(one, Playback)),
            default=0.0,
        )
        least_s = 0.0 if self._has_output else _MIN_REST_S
        return min(max(due_at - self._clock(), least_s), MAX_REST_S)

    def collect(self, plan: StepPlan) -> StepResult:
        """The tokens of all sampling chunks of `plan` that are due by now."""
        now = self._clock()
        for seq in plan.ended:
            self._playbacks.pop(seq, None)
        for start in plan.started:
            self._playbacks[start.seq] = (self._playback(start, now), start.sampling)
        answers: list[Sampled] = []
        failed: list[tuple[int, str]] = []
        for chunk in plan.chunks:
            if chunk.samples:
                output = self._output(chunk, now)
                if output.error is not None:
                    failed.append((chunk.seq, output.error))
                else:
                    _, sampling = self._playbacks[chunk.seq]
                    answers.append(sampled(chunk.seq, output.ids, sampling))
        self._has_output = bool(plan.started or failed or any(item.ids for item in answers))
        return StepResult(plan.step, tuple(answers), tuple(failed))

    def _output(self, chunk: Chunk, now: float) -> ScriptedOutput:
        playback, _ = self._playbacks[chunk.seq]
        if isinstance(playback, str):
            return ScriptedOutput(error=playback)
        if playback.due_at > now:
            return ScriptedOutput()
        output = playback.next_output()
        if output.die is not None:
            _die(output.die)
        return output

    def _playback(self, start: SequenceStart, now: float) -> Playback | str:
        """The answer to a new sequence, or why it gets none."""
        prompt, outputs = start.token_ids[: start.num_prompt], start.token_ids[start.num_prompt :]
        num = len(outputs)
        if tuple(prompt) == PROBE_PROMPT:
            answer = array("I", PROBE_PROMPT)
            return Playback(_PROBE_RULE, answer, None, num_outputs=num, now=now, may_die=False)
        text = self._tokenizer.decode(prompt.tolist(), skip_special_tokens=False)
        index = self._continued(text, outputs) if outputs else self._matcher.choose(text)
        if index is None:
            return f"no rule of the script fits the prompt that ends with {text[-200:]!r}"
        rule = self._script.rules[index]
        may_die = self._epoch <= rule.die_starts
        answer = self._answers[index]
        return Playback(rule, answer, self._end_id, num_outputs=num, now=now, may_die=may_die)

    def _continued(self, text: str, outputs: array[int]) -> int | None:
        """The rule whose answer begins with the outputs of an earlier attempt."""
        for index in self._matcher.fitting(text):
            answer = self._answers[index]
            if self._script.rules[index].finish == "length":
                answer = answer * (len(outputs) // len(answer) + 1)
            if answer[: len(outputs)] == outputs:
                return index
        return None

    def _encode(self, answer: str) -> array[int]:
        return array("I", self._tokenizer.encode(answer, add_special_tokens=False).ids)


@final
class PacedChannel:
    """A channel on which a glance (`take(0.0)`) lasts until the next output is due (`rest_s`), or a
    frame comes.
    """

    def __init__(self, channel: Channel, rest_s: Callable[[], float]) -> None:
        self._channel = channel
        self._rest_s = rest_s

    def take(self, timeout_s: float | None) -> list[tuple[int, bytes]]:
        """All frames that are there; waits for the first up to `timeout_s` (None: for ever)."""
        return self._channel.take(self._rest_s() if timeout_s == 0.0 else timeout_s)

    def send(self, frames: list[tuple[int, bytes]]) -> None:
        """Send frames in order."""
        self._channel.send(frames)


def load_scripted(
    config: WorkerConfig, report: Callable[[str, float, str], None], *, epoch: int
) -> ScriptedRunner:
    """The runner for `config`, in that start of the engine. Raises `ConfigError`."""
    if config.script is None:
        raise ConfigError(f"worker `{config.name}`: the scripted engine needs a `script`")
    script = load_script(Path(config.script).expanduser())
    model_dir = engine_model_dir(config)
    report("tokenizer", 0.5, str(model_dir))
    return ScriptedRunner(config, model_dir, script, epoch=epoch)


def _tokenizer(model_dir: Path) -> Tokenizer:
    from tokenizers import Tokenizer  # noqa: PLC0415 -- 30 ms, for this engine only

    path = model_dir / TOKENIZER_NAME
    try:
        return Tokenizer.from_buffer(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def _die(how: Death) -> NoReturn:
    print(f"the script ends this engine: {how}", file=sys.stderr)
    sys.stderr.flush()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(_DEATH_EXIT_CODE)
    while True:
        time.sleep(MAX_REST_S)
