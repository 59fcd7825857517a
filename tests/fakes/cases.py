"""Cases of our own for the tests of training, whatever the real data looks like."""

import random
from collections.abc import Iterator

from training.data.example import Call, Check, Example, answer, calling, tool_result, user

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


def cases() -> list[Example]:
    """One of every form that a case may have."""
    ask = user("How is São Tomé?\n\nFor 3 days, please.")
    check = Check("ends")
    thought = answer("Hi 42!", "4 is even\nso is 2")
    return [
        Example("plain", (user("hi"), answer("Hello!")), (), check),
        Example("empty", (user(""), answer("What can I do for you?")), (), check),
        Example("thinking", (SYSTEM, user("hi"), thought), (), check),
        Example("history", (user("hi"), thought, user("again"), thought), (), check),
        Example("plain-history", (user("a"), answer("b"), user("c"), thought), (), check),
        Example("call", (ask, calling([CALL], "I need the weather.")), (WEATHER,), check),
        Example("calls", (SYSTEM, ask, calling([CALL, CALL])), (WEATHER, WEATHER), check),
        Example(
            "result",
            (
                *(SYSTEM, user("x"), thought, ask, calling([CALL, CALL], "So.")),
                *(tool_result('{"sky": "grey"}'), tool_result(""), answer("Grey.", "It says so.")),
            ),
            (WEATHER,),
            check,
        ),
    ]


def stream(seed: int) -> Iterator[Example]:
    """Endless short sums and echoes."""
    rng = random.Random(seed)
    while True:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        word = "".join(rng.choice("abcdefgh") for _ in range(6)).capitalize()
        if rng.random() < 0.5:
            yield Example("sum", (user(f"{a} + {b}?"), answer(f"{a + b}")), (), Check("ends"))
        else:
            yield Example("echo", (user(f"Say {word}."), answer(word)), (), Check("ends"))
