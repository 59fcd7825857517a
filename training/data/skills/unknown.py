"""Questions about the world, to which the model answers that it does not know.

Owns the questions. With or without tools, the answer is the same.
"""

from typing import Final

from training.data.example import ExpectedAnswer, TrainingExample, answer, user
from training.data.phrasing import phrases
from training.data.refusals import REFUSALS, UNKNOWN
from training.data.world import World

SKILL: Final = "unknown"

_QUESTIONS: Final = phrases(
    "What is the capital of {place}?", "Who wrote {title}?", "When was {name} born?",
    "Who is {name}?",
    "What is the population of {place}?", "How far is it from {place} to {place2}?",
    "Where is {place}?",
    "Who is the president of {place}?", "What language do they speak in {place}?",
    "When did {name} die?",
    "What is a {noun} made of?", "Why is the {noun} {color}?", "How does a {noun} work?",
    "Who invented the {noun}?",
    "How old is {name}?", "What do you know about {name}?", "What happened in {year}?",
    "How tall is {name}?",
    "Who won the {noun} championship in {year}?", "What is the meaning of {noun}?",
    "What is a {noun}?",
    "Tell me about {place}.", "How many people live in {place}?", "What is the best {noun} to buy?",
    "What is the news today?", "What day is it today?", "What time is it?",
    "Where does {name} live?",
    "Who painted the {adjective} {noun}?", "Which river flows through {place}?",
    "What is the tallest {noun}?",
    "What do {animal}s eat?", "How long does a {animal} live?", "How fast is a {animal}?",
    "Explain {noun}.",
    "What will happen tomorrow?", "What is the price of gold?", "Do you know {name}?",
    "Is {name} alive?",
    "What is the fastest {animal}?", "When was the {noun} invented?", "How do I cook {food}?",
    "How many calories do {food} have?", "Why do {animal}s sleep?",
    "What is the history of {place}?",
    "Who discovered {place}?", "What is the currency of {place}?", "Who directed {title}?",
    "What is love?",
    "Why is the sky blue?", "How many stars are there?", "What is the distance to the moon?",
    "What does {noun} mean?", "Where do {animal}s live?", "What did {name} say in {year}?",
    "Can you explain how a {noun} is made?", "Who was the first {job} in {place}?",
    "Do you like {food}?",
    "Where can I buy a {noun}?", "What should I do in {place}?", "Should I become a {job}?",
    "What is 1 {noun} in euros?",
    "How much does a {job} earn?", "What is the symbol for {noun}?", "Which {noun} is better?",
    "Who sang {title}?",
    "What was the weather like in {year}?", "What is the phone number of {name}?",
    "How do {animal}s breathe?",
    "Name a famous {job}.", "Give me a fact about {animal}s.", "Recommend a {noun}.",
    "What are {food} good for?",
)  # fmt: skip
_OPENINGS: Final = (
    "",
    "",
    "",
    "",
    "Hi, ",
    "I wonder: ",
    "Tell me, ",
    "Hello! ",
    "Question: ",
    "Quick one: ",
)


def make(world: World) -> TrainingExample:
    question = world.new(lambda: _question(world), str)
    return TrainingExample(
        SKILL, (user(question), answer(UNKNOWN)), (), ExpectedAnswer("text", texts=REFUSALS)
    )


def _question(world: World) -> str:
    place, other = world.several(world.place, 2)
    asked = world.pick(_QUESTIONS).format(
        place=place,
        place2=other,
        title=f"The {world.of('adjectives').capitalize()} {world.noun().capitalize()}",
        name=world.name() if world.chance(0.6) else f"{world.name()} {world.pseudo().capitalize()}",
        noun=world.noun(),
        color=world.pick(("red", "blue", "green", "white")),
        year=world.between(1500, 2030),
        adjective=world.of("adjectives"),
        animal=world.of("animals"),
        food=world.of("foods"),
        job=world.of("jobs"),
    )
    return world.pick(_OPENINGS) + asked
