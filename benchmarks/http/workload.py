"""The requests of each cell.

Owns the prompts: their words, their lengths, what they share. Must not know servers or clocks.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from protocol.errors import ConfigError

T = TypeVar("T")

FIRST_TURNS: Final = "first turns"
LATER_TURNS: Final = "later turns"

ANSWER_TOKENS: Final = 100
"""Tokens of each earlier answer in a history. They are fixed, so that histories depend on no
server.
"""

COLD_OWN_TOKENS: Final = 900
"""Tokens of each conversation of its own, after the cold prefix."""

_LEAST_REQUESTS: Final = 8
_SALT_WORDS: Final = 12

_LIST: Final = """
    about above after again air all also animal answer any apple area arm art autumn baby back
    bad ball bank base bear beat bed before begin behind best big bird black blood blue board
    boat body bone book both box boy bread bridge bring brother brown build burn call came car
    care carry case cat cause cell chair change child church circle city class clean clear climb
    clock close cloud coast coat cold color come common cook cool copy corn corner cost count
    country cover cow cross crowd cry current cut dance dark day dead deal dear decide deep
    desert dog door down draw dream dress drink drive drop dry dust duty each ear early earth
    east edge egg eight end engine even ever every eye face fact fall family far farm fast
    father fear feel field fight fill find fine finger fire first fish five flat floor flow
    flower fly follow food foot force forest form four free fresh friend front fruit full game
    garden gas gate gave girl give glass gold good grand grass gray great green ground group
    grow guess guide hair half hand happy hard hat head hear heart heat heavy help high hill
    history hold hole home horse hot hour house human ice idea inch iron island job join jump
    keep key kind king knew lady lake land language large last late laugh law lead learn leave
    left leg length letter level lie life light line list little live long look lost loud love
    low machine main man map mark market master matter meat meet metal middle milk mind mine
    minute mix money month moon more morning mother motion mountain mouth move music name nation
    near neck new night nine noise north nose note number ocean office oil old one open order
    other over page paint pair paper part party path pay people person picture piece place plain
    plan plane plant play point poor port power press price problem product pull push question
    quick quiet race radio rain reach read ready real red rest rice rich ride right ring rise
    river road rock roll roof room root rope rose round row rule run sail salt same sand save
    school science sea season seat second seed sense serve set seven shape share sharp ship shoe
    shop shore short show side sign silver simple sing sister six size skin sky sleep slow small
    snow soft soil son song soon sound south space speak speed spring square stand star start
    state station stay steam steel step stick stone stop store story street string strong sugar
    summer sun table tail talk tall teach team ten test thick thin thing thought three time tiny
    tone tool top town trade train tree trip truck true turn two type valley view village voice
    wait walk wall war warm wash watch water wave way wear weather week weight well west wheel
    white whole wide wife wild wind window winter wire wish woman wonder wood word work world
    write yard year yellow young
"""
_WORDS: Final = tuple(_LIST.split())

Message: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request. `part`: the row of the table in which it counts beside its cell's."""

    messages: tuple[Message, ...]
    part: str = ""


RequestChain: TypeAlias = list[WorkloadRequest]
"""Requests that are sent one after the other."""


@dataclass(frozen=True, slots=True)
class TokenScale:
    """Tokens per word, and tokens of a request without words, by a server's count."""

    tokens_per_word: float = 1.0
    overhead_tokens: float = 0.0

    def num_words(self, tokens: float) -> int:
        """The number of words for `tokens` tokens; at least one."""
        return max(1, round(tokens / self.tokens_per_word))


def token_scale(few: tuple[int, int], many: tuple[int, int]) -> TokenScale:
    """The scale from the words and tokens of two prompts. Raises `ConfigError` if there is no such
    scale.
    """
    (few_words, few_tokens), (many_words, many_tokens) = few, many
    tokens_per_word = (many_tokens - few_tokens) / (many_words - few_words)
    if tokens_per_word <= 0:
        raise ConfigError(
            f"the server counts {few_tokens} tokens for {few_words} words and {many_tokens} for "
            f"{many_words}: its usage cannot size the prompts"
        )
    return TokenScale(tokens_per_word, max(0.0, few_tokens - tokens_per_word * few_words))


@dataclass(frozen=True, slots=True)
class PromptWords:
    """The material of prompts: single words drawn from a list, or pieces of a text that each begin
    with a few words drawn from it.
    """

    words: tuple[str, ...] = _WORDS
    is_text: bool = False

    def draw(self, rng: random.Random, num_words: int) -> str:
        """A text of `num_words` words. Two draws differ from their first words on."""
        if not self.is_text:
            return " ".join(rng.choices(self.words, k=num_words))
        drawn = rng.choices(self.words, k=min(num_words, _SALT_WORDS))
        start = rng.randrange(len(self.words))
        while len(drawn) < num_words:
            drawn += self.words[start : start + num_words - len(drawn)]
            start = 0
        return " ".join(drawn)


class PromptGenerator:
    """Draws the prompts of one cell for one server in one round."""

    def __init__(self, words: PromptWords, scale: TokenScale, salt: str) -> None:
        self._words = words
        self._scale = scale
        self._rng = random.Random(salt)

    def text(self, tokens: float) -> str:
        """A text of about `tokens` tokens that no other text begins with."""
        return self._words.draw(self._rng, self._scale.num_words(tokens))

    def opening(self, tokens: float) -> str:
        """A text as `text` makes it, less the tokens of a request without words."""
        return self.text(tokens - self._scale.overhead_tokens)


class WorkloadCell(ABC):
    """A load: `chains`, of which `streams` run at once."""

    streams: int

    @property
    @abstractmethod
    def name(self) -> str:
        """The cell's name in the table."""

    @property
    @abstractmethod
    def num_requests(self) -> int:
        """The number of requests in one round."""

    @abstractmethod
    def chains(self, prompts: PromptGenerator) -> list[RequestChain]:
        """The requests of one round."""


@dataclass(frozen=True, slots=True)
class Streams(WorkloadCell):
    """Requests that share nothing, `streams` at a time, `each` per stream and at least eight."""

    streams: int
    input_tokens: int
    each: int = 2

    @property
    def name(self) -> str:
        return f"c={self.streams}"

    @property
    def num_requests(self) -> int:
        return max(_LEAST_REQUESTS, self.streams * self.each)

    def chains(self, prompts: PromptGenerator) -> list[RequestChain]:
        count = self.num_requests
        return [
            [WorkloadRequest((_user(prompts.opening(self.input_tokens)),))] for _ in range(count)
        ]


@dataclass(frozen=True, slots=True)
class Agents(WorkloadCell):
    """Conversations at once that share a system prompt and grow to `longest_tokens` in their last
    turn. Raises `ConfigError` if that leaves nothing for the turns.
    """

    streams: int
    turns: int
    shared_tokens: int
    longest_tokens: int

    def __post_init__(self) -> None:
        if self.new_tokens < 1:
            raise ConfigError(
                f"agents of {self.turns} turns do not fit between {self.shared_tokens} and "
                f"{self.longest_tokens} tokens: earlier answers take {ANSWER_TOKENS} per turn"
            )

    @property
    def new_tokens(self) -> int:
        """The tokens that each turn adds beside the answer before it."""
        answers = ANSWER_TOKENS * (self.turns - 1)
        return (self.longest_tokens - self.shared_tokens - answers) // self.turns

    @property
    def name(self) -> str:
        return f"agents {self.streams}x{self.turns}"

    @property
    def num_requests(self) -> int:
        return self.streams * self.turns

    def chains(self, prompts: PromptGenerator) -> list[RequestChain]:
        shared = _system(prompts.opening(self.shared_tokens))
        return [self._conversation(shared, prompts) for _ in range(self.streams)]

    def _conversation(self, shared: Message, prompts: PromptGenerator) -> RequestChain:
        messages: tuple[Message, ...] = (shared,)
        chain: RequestChain = []
        for turn in range(self.turns):
            messages += (_user(prompts.text(self.new_tokens)),)
            chain.append(WorkloadRequest(messages, LATER_TURNS if turn else FIRST_TURNS))
            messages += ({"role": "assistant", "content": prompts.text(ANSWER_TOKENS)},)
        return chain


@dataclass(frozen=True, slots=True)
class Cold(WorkloadCell):
    """The first turns of conversations that begin at once with one prefix that no cache holds."""

    streams: int
    prefix_tokens: int

    @property
    def name(self) -> str:
        return f"cold {self.streams}x{self.prefix_tokens}"

    @property
    def num_requests(self) -> int:
        return self.streams

    def chains(self, prompts: PromptGenerator) -> list[RequestChain]:
        shared = _system(prompts.opening(self.prefix_tokens))
        return [
            [WorkloadRequest((shared, _user(prompts.text(COLD_OWN_TOKENS))))]
            for _ in range(self.streams)
        ]


@dataclass(frozen=True, slots=True)
class Staggered(WorkloadCell):
    """The cell `base` again, whose streams begin at moments drawn over the time of one answer: many
    clients that know nothing of each other. In lockstep all streams begin at one moment.
    """

    base: WorkloadCell
    streams: int

    @property
    def name(self) -> str:
        return f"{self.base.name} staggered"

    @property
    def num_requests(self) -> int:
        return self.base.num_requests

    def chains(self, prompts: PromptGenerator) -> list[RequestChain]:
        return self.base.chains(prompts)

    def starts_s(self, salt: str, answer_s: float) -> list[float]:
        """Seconds from the cell's begin to the start of each stream. Equal salts give equal starts,
        so that every server sees the same.
        """
        chance = random.Random(salt)
        return [answer_s * chance.random() for _ in range(self.streams)]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


def server_order(servers: Sequence[T], round_index: int, cell_index: int = 0) -> list[T]:
    """The first server changes with every round and from cell to cell."""
    turn = (round_index + cell_index) % len(servers)
    return [*servers[turn:], *servers[:turn]]
