"""Cases of our own for the tests of training, whatever the real data looks like."""

import random
from collections.abc import Iterator

from training.data.example import (
    Call,
    ExpectedAnswer,
    TrainingExample,
    answer,
    calling,
    tool_result,
    user,
)

WEATHER = {
    "type": "function",
    "function": {
        "name": "getWeather-now",
        "description": "Says “what it’s like” in a place; use it for <any> place & time.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["place"],
        },
    },
}
CALL = Call("getWeather-now", {"place": 'São "Tomé"', "days": 3, "now": True, "max": 1.5})
SYSTEM = {"role": "system", "content": "You are brief.\n\nAlways."}


def cases() -> list[TrainingExample]:
    """One of every form that a case may have."""
    ask = user("How is São Tomé?\n\nFor 3 days, please.")
    check = ExpectedAnswer("ends")
    thought = answer("Hi 42!", "4 is even\nso is 2")
    return [
        TrainingExample("plain", (user("hi"), answer("Hello!")), (), check),
        TrainingExample("empty", (user(""), answer("What can I do for you?")), (), check),
        TrainingExample("thinking", (SYSTEM, user("hi"), thought), (), check),
        TrainingExample("history", (user("hi"), thought, user("again"), thought), (), check),
        TrainingExample("plain-history", (user("a"), answer("b"), user("c"), thought), (), check),
        TrainingExample("call", (ask, calling([CALL], "I need the weather.")), (WEATHER,), check),
        TrainingExample("calls", (SYSTEM, ask, calling([CALL, CALL])), (WEATHER, WEATHER), check),
        TrainingExample(
            "result",
            (
                SYSTEM, user("x"), thought, ask, calling([CALL, CALL], "So."),
                tool_result('{"sky": "grey"}'), tool_result(""), answer("Grey.", "It says so."),
            ),
            (WEATHER,),
            check,
        ),
    ]  # fmt: skip


def stream(seed: int) -> Iterator[TrainingExample]:
    """Endless short sums and echoes."""
    rng = random.Random(seed)
    while True:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        word = "".join(rng.choice("abcdefgh") for _ in range(6)).capitalize()
        if rng.random() < 0.5:
            yield TrainingExample(
                "sum", (user(f"{a} + {b}?"), answer(f"{a + b}")), (), ExpectedAnswer("ends")
            )
        else:
            yield TrainingExample(
                "echo", (user(f"Say {word}."), answer(word)), (), ExpectedAnswer("ends")
            )
