"""A token engine that breaks: a process that registers over the worker protocol and lies.

Owns its ways to break, by what breaks. A prompt says in its last message which way it wants
(`way=NAME`); others, such as health probes, get a right answer. `python -m tests.chaos.token_liar
ADDRESS MODEL` takes orders on its standard input, as `liar.py` does, and prints the question of
each request that it has read; `... good` always answers.
"""

import functools
import re
import sys
from collections.abc import Callable
from typing import Final

import msgspec
import trio

from protocol.messages import Accepted, Dismiss, Fault, Ping, Rejected, Submit, TokenItem, Tokens
from protocol.tokens import count_tokens, pack_tokens
from protocol.wire import decode_to_worker
from tests.chaos.liar import QUESTION, WORDS
from tests.fakes.text_files import make_tokenizer
from tests.fakes.worker import FakeSequence, FakeWorker, prompt_ids

EVERY_S: Final = 0.1
_WAY: Final = re.compile(r"way=([a-z-]+)")


class Liar(FakeWorker):
    """A worker whose sequences break as their prompts want."""

    def __init__(self, model: str, *, is_good: bool) -> None:
        super().__init__("good-one" if is_good else f"liar-{model}", model=model, text=RIGHT)
        self.health = ""
        self._is_good = is_good
        self._tokenizer = make_tokenizer()

    @property
    def words(self) -> list[int]:
        """The ids of the right answer, without its end."""
        return self.script[:-1]

    def show(self, sequence: FakeSequence, ids: list[int], *, at: int | None = None) -> None:
        """Send tokens, of which the first is said to be the one at `at`."""
        submit = sequence.submit
        position = sequence.num_sent if at is None else at
        item = TokenItem(submit.request_id, submit.attempt, position, pack_tokens(ids))
        self._step += 1
        sequence.num_sent = position + len(ids)
        self.say(Tokens(self._step, (item,)))

    def end(self, sequence: FakeSequence, tokens: int | None = None) -> None:
        """A regular end, with its own count of tokens."""
        if tokens is not None:
            sequence.num_sent = tokens
        self.finish(sequence, "stop")

    def again_and_again(self, act: Callable[[], None]) -> None:
        """`act` for ever, as far as the harness is concerned."""
        self.nursery.start_soon(self._repeat, act)

    async def _repeat(self, act: Callable[[], None]) -> None:
        for _ in range(300):
            act()
            await trio.sleep(EVERY_S)

    def die_now(self) -> None:
        """The engine is gone, and with it all sequences; another one is there at once."""
        self.running.clear()
        self.cached.clear()
        self._block_seq = 0
        self.say(Fault(self.name, self.epoch, "killed", 137))
        self.epoch += 1
        self.register()

    def flap(self) -> None:
        """As an engine whose health comes and goes."""
        if self.health == "health-flaps":
            self.die_now()

    nursery: trio.Nursery

    def _hear(self, frame: bytes) -> None:
        message = decode_to_worker(frame)
        if isinstance(message, Ping) and self.health in ("health-hangs", "health-dribbles"):
            return
        if isinstance(message, Dismiss):
            self.running.clear()
            self.nursery.start_soon(self._return)
        super()._hear(frame)

    async def _return(self) -> None:
        """Register again, as a worker does that is dismissed."""
        await trio.sleep(EVERY_S)
        self.register()

    def _submitted(self, submit: Submit) -> None:
        prompt = self._tokenizer.decode(prompt_ids(submit), skip_special_tokens=True)
        question = QUESTION.search(prompt)
        if question and not self._is_good:
            print(question[0], flush=True)
        found = _WAY.search(prompt)
        way = WAYS_BY_NAME.get(found[1]) if found and not self._is_good else None
        if self.health == "health-lies":
            way = WAYS_BY_NAME["error-inside"]
        if way is None:
            super()._submitted(submit)
            return
        sequence = FakeSequence(submit, count_tokens(submit.output_ids))
        if way not in (_unheard, _busy, _invalid):
            self.say(Accepted(submit.request_id, submit.attempt, 0))
            self.running[submit.request_id] = sequence
        way(self, sequence)


RIGHT: Final = "".join(WORDS)

Way = Callable[[Liar, FakeSequence], None]


def _unheard(liar: Liar, sequence: FakeSequence) -> None:
    """Nothing is said of the sequence."""


def _busy(liar: Liar, sequence: FakeSequence) -> None:
    liar.say(Rejected(sequence.submit.request_id, sequence.submit.attempt, "busy"))


def _invalid(liar: Liar, sequence: FakeSequence) -> None:
    liar.say(Rejected(sequence.submit.request_id, sequence.submit.attempt, "invalid", "it is so"))


def _silent(_: Liar, __: FakeSequence) -> None:
    """Accept the sequence, and send nothing more."""


def _cut_at_once(liar: Liar, _: FakeSequence) -> None:
    liar.die_now()


def _after_words(then: Way) -> Way:
    def say(liar: Liar, sequence: FakeSequence) -> None:
        liar.show(sequence, liar.words[sequence.num_sent :][:2])
        then(liar, sequence)

    return say


def _after_all(then: Way) -> Way:
    def say(liar: Liar, sequence: FakeSequence) -> None:
        liar.show(sequence, liar.words[sequence.num_sent :])
        then(liar, sequence)

    return say


def _error(liar: Liar, sequence: FakeSequence) -> None:
    liar.finish(sequence, "error", "it broke")


def _garbage(liar: Liar, sequence: FakeSequence) -> None:
    """Frames that are no messages, then a right answer."""
    for frame in (b"", b"\xff" * 20, b"\x93\x24"):
        liar.say_frame(frame)
    liar._generate(sequence.submit.request_id)


def _cut_frame(liar: Liar, sequence: FakeSequence) -> None:
    """The half of a frame, then nothing."""
    submit = sequence.submit
    item = TokenItem(submit.request_id, submit.attempt, 0, pack_tokens(liar.words))
    frame = msgspec.msgpack.encode(Tokens(1, (item,)))
    liar.say_frame(frame[: len(frame) // 2])


def _gap(liar: Liar, sequence: FakeSequence) -> None:
    """Two tokens are left out."""
    at = sequence.num_sent
    liar.show(sequence, liar.words[at : at + 1])
    liar.show(sequence, liar.words[at + 3 :], at=at + 3)
    liar.end(sequence)


def _twice(liar: Liar, sequence: FakeSequence) -> None:
    """The first tokens come once more."""
    liar.show(sequence, liar.words[sequence.num_sent :][:2])
    liar.show(sequence, liar.words[:2], at=0)
    liar.show(sequence, liar.words[2:])
    liar.end(sequence)


def _outside(liar: Liar, sequence: FakeSequence) -> None:
    """Tokens that the vocabulary does not have. They have no text, as the padding of a vocabulary
    has none; the rest is right.
    """
    words = liar.words[sequence.num_sent :]
    liar.show(sequence, [2**31 - 1, *words, 2**31 - 2])
    liar.end(sequence)


def _nothing(liar: Liar, sequence: FakeSequence) -> None:
    """An end at once, by length, although no token was sent."""
    liar.finish(sequence, "length")


def _ends_twice(liar: Liar, sequence: FakeSequence) -> None:
    liar.end(sequence)
    liar.running[sequence.submit.request_id] = sequence
    liar.finish(sequence, "error", "once more")


def _tokens_behind(liar: Liar, sequence: FakeSequence) -> None:
    liar.end(sequence)
    liar.show(sequence, liar.words[:2])


def _counted(tokens: int) -> Way:
    return lambda liar, sequence: liar.end(sequence, tokens)


def _empty_for_ever(liar: Liar, sequence: FakeSequence) -> None:
    liar.again_and_again(lambda: liar.show(sequence, []))


def _steps_for_ever(liar: Liar, _: FakeSequence) -> None:
    """The engine steps, and sends nothing of the sequence."""
    liar.again_and_again(liar.load)


WAYS: Final[dict[str, dict[str, Way]]] = {
    "connect": {"cut-at-once": _cut_at_once, "never-answers": _unheard},
    "head": {"status-busy": _busy, "status-invalid": _invalid},
    "body": {"body-empty": _nothing, "body-cut": _after_words(_cut_at_once)},
    "framing": {"frame-garbage": _garbage, "frame-cut": _cut_frame},
    "content": {
        "error-inside": _error,
        "error-late": _after_words(_error),
        "tokens-missing": _gap,
        "tokens-twice": _twice,
        "tokens-outside": _outside,
    },
    "end": {
        "no-finish": _after_all(_silent),
        "end-twice": _after_all(_ends_twice),
        "data-behind-done": _after_all(_tokens_behind),
    },
    "usage": {
        "usage-odd": _after_all(_counted(1_000_000)),
        "usage-less": _after_all(_counted(0)),
    },
    "time": {
        "silent-head": _silent,
        "steps-first": _steps_for_ever,
        "empty-after-words": _after_words(_empty_for_ever),
        "steps-after-words": _after_words(_steps_for_ever),
        "silent-after-words": _after_words(_silent),
    },
}
WAYS_BY_NAME: Final = {name: way for ways in WAYS.values() for name, way in ways.items()}


async def _take_orders(liar: Liar) -> None:
    """Each line is how its health breaks from now on; an empty one heals it."""
    while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        liar.health = line.strip()
        print(f"ordered {liar.health}", flush=True)


async def main(address: str, model: str, *words: str) -> None:
    """Serve until killed."""
    liar = Liar(model, is_good="good" in words)
    async with trio.open_nursery() as nursery:
        liar.nursery = nursery
        nursery.start_soon(liar.run)
        nursery.start_soon(_take_orders, liar)
        liar.register()
        liar.connect(address)
        while True:
            await trio.sleep(1.0)
            liar.flap()


if __name__ == "__main__":
    trio.run(functools.partial(main, *sys.argv[1:]))
