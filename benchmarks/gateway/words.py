"""The requests of the benchmark and the expected answers.

Owns the bodies and the text with which the synthetic engine answers them. Must not know sockets or
processes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from tokenizers import Tokenizer

from workers.model_dir import builtin_dir
from workers.replay.synthetic import read_vocabulary

MODEL_DIR: Final = "builtin:herma-tiny"
MODEL: Final = "m"
CLOUD_MODEL: Final = "cloud"
"""The model that the gateway gets from a provider."""

PROMPT_CHARS: Final = 900
"""Characters of the user's text; the load generators of other gateways use as many."""

NUM_SEEDS: Final = 8
"""Different seeds per stream reveal mixed-up streams; few seeds keep the texts cached."""

_SYSTEM: Final = "You are a helpful assistant."


def answer_text(seed: int, num_tokens: int) -> str:
    """The synthetic engine's answer to `seed`: a word for each token."""
    return "".join(answer_words(seed, num_tokens))


@cache
def answer_words(seed: int, num_tokens: int) -> tuple[str, ...]:
    """The same word by word, each with its leading space."""
    model_dir = builtin_dir(MODEL_DIR)
    vocabulary = read_vocabulary(model_dir)
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids = [vocabulary.at(seed, index) for index in range(num_tokens)]
    return tuple(tokenizer.decode([token_id]) for token_id in ids)


def prompt(number: int) -> str:
    """A user's text of English words, different for each number."""
    rng = random.Random(number)
    words = answer_words(0, 400)
    text = "".join(rng.choices(words, k=PROMPT_CHARS // 3))
    return text[1 : PROMPT_CHARS + 1]


def request(number: int, seed: int, num_tokens: int, *, stream: bool, model: str = MODEL) -> bytes:
    """The JSON body of a chat with `prompt(number)` and that many output tokens."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": prompt(number)},
        ],
        "max_tokens": num_tokens,
        "seed": seed,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(body).encode()


def seeds(count: int) -> Iterator[int]:
    """A seed for each of `count` requests."""
    return (number % NUM_SEEDS for number in range(count))
