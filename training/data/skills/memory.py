"""Facts that the user stated some turns ago.

Owns the facts, the small talk between, and a later statement that replaces an earlier one.
"""

from collections.abc import Callable
from typing import Final

from training.data.entities import code
from training.data.example import ExpectedAnswer, Message, TrainingExample, answer, user
from training.data.phrasing import phrases
from training.data.pools import COLORS, WEEKDAYS
from training.data.refusals import REFUSALS
from training.data.world import World

SKILL: Final = "memory"
NOT_TOLD: Final = "You have not told me."

_TOPICS: Final = (
    # topic, statements, reply, questions, answer
    ("name", phrases("My name is {v}.", "I am {v}.", "I'm called {v}.", "Call me {v}.",
    "Hi, I am {v}!"),
     "Hello, {v}! How can I help you?",
     phrases("What is my name?", "Do you remember my name?", "Who am I?", "What am I called?"),
     "Your name is {v}."),
    ("place", phrases("I live in {v}.", "My home is in {v}.", "I'm from {v}.", "My town is {v}."),
     "I will remember that you live in {v}.",
     phrases("Where do I live?", "In which town do I live?", "Where is my home?",
     "Which town am I from?"),
     "You live in {v}."),
    ("color", phrases("My favourite color is {v}.", "I like the color {v} best.",
    "The color I love is {v}."),
     "I will remember that your favourite color is {v}.",
     phrases("What is my favourite color?", "Which color do I like best?", "What color do I love?"),
     "Your favourite color is {v}."),
    ("food", phrases("My favourite food is {v}.", "I like to eat {v}.", "I love {v}.",
    "I always eat {v}."),
     "I will remember that you like {v}.",
     phrases("What is my favourite food?", "What do I like to eat?", "Which food do I love?"),
     "You like {v}."),
    ("job", phrases("I am a {v}.", "I work as a {v}.", "My job is {v}.", "I have a job as a {v}."),
     "I will remember that you work as a {v}.",
     phrases("What is my job?", "What do I do for work?", "What do I work as?",
     "Which job do I have?"),
     "You work as a {v}."),
    ("pet", phrases("I have a {a} called {v}.", "My {a} is called {v}.",
    "The name of my {a} is {v}."),
     "I will remember that your {a} is called {v}.",
     phrases("What is the name of my {a}?", "What is my {a} called?", "How did I name my {a}?"),
     "Your {a} is called {v}."),
    ("age", phrases("I am {v} years old.", "My age is {v}.", "I turned {v} this year."),
     "I will remember that you are {v} years old.",
     phrases("How old am I?", "What is my age?", "Do you remember how old I am?"),
     "You are {v} years old."),
    ("code", phrases("The code is {v}.", "My code is {v}.", "Remember the code {v}.",
    "Keep this code: {v}"),
     "I will remember the code {v}.",
     phrases("What is the code?", "Which code did I give you?", "Tell me the code.",
     "What was my code?"),
     "The code is {v}."),
    ("word", phrases("Remember the word {v}.", "The secret word is {v}.", "The password is {v}."),
     "I will remember the word {v}.",
     phrases("What was the word?", "Which word did I tell you?", "What is the secret word?",
     "Tell me the word."),
     "The word is {v}."),
    ("meeting", phrases("My meeting is on {v}.", "I have a meeting on {v}.",
    "Remember my meeting on {v}."),
     "I will remember your meeting on {v}.",
     phrases("When is my meeting?", "On which day is my meeting?", "What day do I have a meeting?"),
     "Your meeting is on {v}."),
    ("sister", phrases("My sister is called {v}.", "I have a sister, {v}.",
    "My sister's name is {v}."),
     "I will remember that your sister is called {v}.",
     phrases("What is my sister's name?", "What is my sister called?", "Who is my sister?"),
     "Your sister is called {v}."),
    ("brother", phrases("My brother is called {v}.", "I have a brother, {v}.",
    "My brother's name is {v}."),
     "I will remember that your brother is called {v}.",
     phrases("What is my brother's name?", "What is my brother called?", "Who is my brother?"),
     "Your brother is called {v}."),
)  # fmt: skip
_SMALL_TALK: Final = (
    ("Thanks!", "You are welcome."),
    ("Thank you.", "You are welcome."),
    ("How are you?", "I am well, thank you. How can I help you?"),
    ("Who are you?", "I am herma-tiny, a small language model of Herma."),
    ("Hello!", "Hello! How can I help you?"),
)
_Topic = tuple[str, tuple[str, ...], str, tuple[str, ...], str]


def make(world: World) -> TrainingExample:
    topics = world.shuffled(_TOPICS)[: world.pick((1, 1, 2, 2, 3, 4))]
    asked = world.pick(topics)
    messages: list[Message] = []
    values = {}
    for topic in topics:
        values[topic[0]] = _told(world, topic, messages, world.of("animals"))
        if world.chance(0.25):
            _talk(world, messages)
    if world.chance(0.12):
        values[asked[0]] = _told(world, asked, messages, values[asked[0]]["a"])
    if world.chance(0.1):
        asked, reply = _untold(world, topics)
        question = world.pick(asked[3]).format(a=world.of("animals"))
    else:
        question = world.pick(asked[3]).format(**values[asked[0]])
        reply = asked[4].format(**values[asked[0]])
    messages += [user(question), answer(reply)]
    also = REFUSALS if reply == NOT_TOLD else ()
    return TrainingExample(SKILL, tuple(messages), (), ExpectedAnswer("text", texts=(reply, *also)))


def _told(world: World, topic: _Topic, messages: list[Message], animal: str) -> dict[str, str]:
    values = {"v": _DRAWS.get(topic[0], World.name)(world), "a": animal}
    messages.append(user(world.pick(topic[1]).format(**values)))
    messages.append(answer(topic[2].format(**values)))
    return values


def _talk(world: World, messages: list[Message]) -> None:
    question, reply = world.pick(_SMALL_TALK)
    messages += [user(question), answer(reply)]


def _untold(world: World, told: list[_Topic]) -> tuple[_Topic, str]:
    left = [topic for topic in _TOPICS if topic not in told]
    return world.pick(left), NOT_TOLD


_DRAWS: Final[dict[str, Callable[[World], str]]] = {
    "place": World.place,
    "color": lambda world: world.pick(COLORS),
    "food": lambda world: world.of("foods"),
    "job": lambda world: world.of("jobs"),
    "age": lambda world: str(world.between(5, 99)),
    "code": code,
    "word": World.word,
    "meeting": lambda world: world.pick(WEEKDAYS),
}
"""How the values of each topic are drawn; all others are names."""
