"""Questions that the given text answers, or does not.

Owns the relations that can be stated and asked about. The answer is one full sentence, independent
of the text's wording.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from training.data.entities import clock_time, code
from training.data.example import ExpectedAnswer, Message, TrainingExample, answer, user
from training.data.filler import story
from training.data.phrasing import phrases
from training.data.pools import COLORS, MONTHS, WEEKDAYS
from training.data.refusals import REFUSALS
from training.data.world import World

SKILL: Final = "facts"
NOT_SAID: Final = "The text does not say."


@dataclass(frozen=True, slots=True)
class _Relation:
    """Phrases for a subject {s} with a value {v}: statements (the first is the answer's form),
    questions for the value, and questions for the subject.
    """

    subject: str
    value: str
    said: tuple[str, ...]
    value_asked: tuple[str, ...]
    subject_asked: tuple[str, ...] = ()


_RELATIONS: Final = (
    _Relation(
        "name", "place",
        ("{s} lives in {v}.", "{s} has a flat in {v}.", "The home of {s} is in {v}.",
        "{v} is where {s} lives."),
        phrases("Where does {s} live?", "In which town does {s} live?", "What is the town of {s}?",
        "Where is the home of {s}?"),
        phrases("Who lives in {v}?", "Who has a home in {v}?"),
    ),
    _Relation(
        "name", "job",
        ("{s} works as a {v}.", "{s} is a {v}.", "{s} earns a living as a {v}.",
        "The {v} is called {s}."),
        phrases("What is the job of {s}?", "What does {s} work as?",
        "What does {s} do for a living?", "Which job does {s} have?"),
        phrases("Who works as a {v}?", "Who is the {v}?"),
    ),
    _Relation(
        "name", "food",
        ("{s} likes {v}.", "{s} loves to eat {v}.", "The favourite food of {s} is {v}.",
        "{s} always orders {v}."),
        phrases("What does {s} like?", "What does {s} like to eat?",
        "What is the favourite food of {s}?", "What food does {s} like?"),
        phrases("Who likes {v}?", "Who likes to eat {v}?"),
    ),
    _Relation(
        "name", "age",
        ("{s} is {v} years old.", "The age of {s} is {v}.", "{s}, aged {v}, was there too.",
        "{s} turned {v} last week."),
        phrases("How old is {s}?", "What is the age of {s}?", "Which age does {s} have?"),
        phrases("Who is {v} years old?",),
    ),
    _Relation(
        "name", "pet",
        ("{s} has a {v}.", "{s} keeps a {v}.", "The pet of {s} is a {v}.", "A {v} belongs to {s}."),
        phrases("Which animal does {s} have?", "What pet does {s} have?",
        "What is the pet of {s}?"),
        phrases("Who has a {v}?", "To whom does the {v} belong?"),
    ),
    _Relation(
        "name", "thing",
        ("{s} owns a {v}.", "{s} is the owner of a {v}.", "A {v} is the property of {s}.",
        "{s} bought a {v}."),
        phrases("What does {s} own?", "Which thing does {s} own?", "What is the property of {s}?"),
        phrases("Who owns a {v}?", "Who is the owner of the {v}?"),
    ),
    _Relation(
        "thing", "color",
        ("The {s} is {v}.", "The color of the {s} is {v}.", "There is a {v} {s}.",
        "Somebody painted the {s} {v}."),
        phrases("What color is the {s}?", "Which color does the {s} have?",
        "What is the color of the {s}?"),
    ),
    _Relation(
        "thing", "price",
        ("The {s} costs {v} euros.", "The price of the {s} is {v} euros.",
        "You pay {v} euros for the {s}.", "The {s} is sold for {v} euros."),
        phrases("How much is the {s}?", "What does the {s} cost?", "What is the price of the {s}?",
        "How much does the {s} cost?"),
        phrases("What costs {v} euros?", "Which thing costs {v} euros?"),
    ),
    _Relation(
        "thing", "holder",
        ("The {s} is in the {v}.", "You will find the {s} in the {v}.", "The {s} lies in the {v}.",
        "In the {v} there is the {s}."),
        phrases("Where is the {s}?", "In what is the {s}?", "Where can I find the {s}?",
        "Where do I look for the {s}?"),
        phrases("What is in the {v}?", "What do I find in the {v}?"),
    ),
    _Relation(
        "thing", "code",
        ("The code of the {s} is {v}.", "The {s} opens with the code {v}.", "Use {v} for the {s}.",
        "{v} is the code of the {s}."),
        phrases("What is the code of the {s}?", "Which code does the {s} have?",
        "What code opens the {s}?", "Tell me the code of the {s}."),
    ),
    _Relation(
        "thing", "maker",
        ("{v} made the {s}.", "The {s} was made by {v}.", "The maker of the {s} is {v}.",
        "It was {v} who built the {s}."),
        phrases("Who made the {s}?", "By whom was the {s} made?", "Who is the maker of the {s}?",
        "Who built the {s}?"),
        phrases("What did {v} make?", "What was made by {v}?"),
    ),
    _Relation(
        "event", "day",
        ("The {s} is on {v}.", "The {s} takes place on {v}.", "On {v} there is the {s}.",
        "We planned the {s} for {v}."),
        phrases("When is the {s}?", "On which day is the {s}?", "What day is the {s}?",
        "When does the {s} take place?"),
        phrases("What is on {v}?", "What takes place on {v}?"),
    ),
    _Relation(
        "event", "time",
        ("The {s} starts at {v}.", "The {s} begins at {v}.", "At {v} the {s} begins.",
        "The start of the {s} is at {v}."),
        phrases("At what time does the {s} start?", "When does the {s} start?",
        "What time is the {s}?", "When does the {s} begin?"),
    ),
    _Relation(
        "land", "city",
        ("The capital of {s} is {v}.", "{v} is the capital of {s}.", "{s} has {v} as its capital.",
        "{s} is ruled from its capital {v}."),
        phrases("What is the capital of {s}?", "Which town is the capital of {s}?",
        "Name the capital of {s}."),
        phrases("Of which land is {v} the capital?",),
    ),
    _Relation(
        "name", "birth",
        ("{s} was born in {v}.", "The birthday of {s} is in {v}.", "In {v} {s} has a birthday.",
        "{s} was a child of {v}."),
        phrases("When was {s} born?", "In which month was {s} born?",
        "When is the birthday of {s}?"),
        phrases("Who was born in {v}?",),
    ),
    _Relation(
        "name", "phone",
        ("The number of {s} is {v}.", "Call {s} at {v}.", "{s} can be reached at {v}.",
        "{v} is the number of {s}."),
        phrases("What is the number of {s}?", "How can I reach {s}?", "Which number does {s} have?",
        "What number do I call for {s}?"),
    ),
)  # fmt: skip
_EVENTS: Final = (
    "meeting",
    "concert",
    "party",
    "exam",
    "lesson",
    "match",
    "wedding",
    "lecture",
    "dinner",
)
_LAYOUTS: Final = (
    "{facts}\n\n{question}", "{facts} {question}", "Text: {facts}\n\nQuestion: {question}",
    "Read this: {facts}\n{question}", "{question}\n\n{facts}",
    "Here are some facts.\n{facts}\n\n{question}",
    "Context:\n{facts}\n\n{question}", "{facts}\n---\n{question}",
    "Question: {question}\nText: {facts}",
    "Use this text to answer. {facts} {question}", "I know that: {facts} {question}",
    '"{facts}"\n\n{question}',
)  # fmt: skip


def make(world: World) -> TrainingExample:
    facts = _facts(world, world.between(1, 7))
    relation, subject, value = world.pick(facts)
    question, reply = _asked(world, relation, subject, value, facts)
    text = _text(world, facts)
    if world.chance(0.25):
        head = world.pick(("", "", "Facts: ", "What you know: ", "Notes:\n", "# Knowledge\n"))
        messages: tuple[Message, ...] = (
            {"role": "system", "content": head + text},
            user(question),
            answer(reply),
        )
    else:
        asked = world.pick(_LAYOUTS).format(facts=text, question=question)
        messages = (user(asked), answer(reply))
    if world.chance(0.15):
        question, reply = _asked(world, *world.pick(facts), facts)
        messages += (user(question), answer(reply))
    also = REFUSALS if reply == NOT_SAID else ()
    return TrainingExample(SKILL, messages, (), ExpectedAnswer("text", texts=(reply, *also)))


def make_far(world: World, bury: Callable[[list[str]], str], num_questions: int) -> TrainingExample:
    """`num_questions` in turn about facts that `bury` hides, in their order, in a longer text."""
    facts = _facts(world, world.between(1, 8))
    asked = [_asked(world, *world.pick(facts), facts) for _ in range(num_questions)]
    text = bury([world.pick(relation.said).format(s=s, v=v) for relation, s, v in facts])
    question, reply = asked[0]
    if world.chance(0.5):
        messages: tuple[Message, ...] = ({"role": "system", "content": text}, user(question))
    else:
        messages = (user(world.pick(_LAYOUTS).format(facts=text, question=question)),)
    messages += (answer(reply),)
    for question, reply in asked[1:]:
        messages += (user(question), answer(reply))
    also = REFUSALS if reply == NOT_SAID else ()
    return TrainingExample(SKILL, messages, (), ExpectedAnswer("text", texts=(reply, *also)))


_Fact = tuple[_Relation, str, str]


def _facts(world: World, count: int) -> list[_Fact]:
    """Facts in which no subject has two values and no value two subjects."""
    facts: list[_Fact] = []
    kinds = world.shuffled(_RELATIONS)[: world.between(1, 3)]
    subjects: dict[str, list[str]] = {}
    used: set[str] = set()
    for _ in range(count):
        relation = world.pick(kinds)
        known = subjects.setdefault(relation.subject, [])
        subject = (
            world.pick(known) if known and world.chance(0.4) else _DRAWS[relation.subject](world)
        )
        value = _DRAWS[relation.value](world)
        taken = any(fact[0] is relation and fact[1] == subject for fact in facts)
        if taken or value in used or subject in used:
            continue
        if subject not in known:
            known.append(subject)
        used.add(value)
        facts.append((relation, subject, value))
    return facts


def _asked(
    world: World, relation: _Relation, subject: str, value: str, facts: list[_Fact]
) -> tuple[str, str]:
    """A question and its answer."""
    if world.chance(0.15):
        if world.chance(0.4):
            other = world.pick(_RELATIONS)
            told = {fact[0].value for fact in facts}
            if other.subject == relation.subject != "event" and other.value not in told:
                return world.pick(other.value_asked).format(s=subject), NOT_SAID
        stranger = _DRAWS[relation.subject](world)
        if all(stranger != other for _, other, _ in facts):
            return world.pick(relation.value_asked).format(s=stranger), NOT_SAID
    reply = relation.said[0].format(s=subject, v=value)
    if relation.subject_asked and world.chance(0.25):
        return world.pick(relation.subject_asked).format(v=value), reply
    return world.pick(relation.value_asked).format(s=subject), reply


def _text(world: World, facts: list[_Fact]) -> str:
    sentences = []
    for relation, subject, value in facts:
        way = relation.said[0] if world.chance(0.4) else world.pick(relation.said)
        sentences.append(way.format(s=subject, v=value))
        if world.chance(0.08):
            sentences.append(story(world, 1))
    if world.chance(0.04):
        middle = world.between(0, len(sentences))
        sentences.insert(middle, story(world, world.between(5, 60)))
        sentences.append(story(world, world.between(1, 60)))
    form = world.random()
    if form < 0.7:
        return " ".join(sentences)
    return "\n".join(f"- {line}" for line in sentences) if form < 0.85 else "\n".join(sentences)


_DRAWS: Final[dict[str, Callable[[World], str]]] = {
    "name": World.name,
    "maker": World.name,
    "place": World.place,
    "thing": World.noun,
    "holder": World.noun,
    "time": clock_time,
    "code": code,
    "job": lambda world: world.of("jobs"),
    "food": lambda world: world.of("foods"),
    "pet": lambda world: world.of("animals"),
    "age": lambda world: str(world.between(2, 99)),
    "price": lambda world: str(world.between(2, 999)),
    "event": lambda world: world.pick(_EVENTS),
    "color": lambda world: world.pick(COLORS),
    "day": lambda world: world.pick(WEEKDAYS),
    "birth": lambda world: world.pick(MONTHS),
    "land": lambda world: world.pseudo(4).capitalize(),
    "city": lambda world: world.pseudo(4).capitalize(),
    "phone": lambda world: f"{world.between(100, 999)}-{world.between(1000, 9999)}",
}
"""How to draw a subject or a value of each kind."""
