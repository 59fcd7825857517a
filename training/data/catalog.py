"""Tools that many clients have, and everyday words that ask for them. For training only.

Owns the list. What it teaches beyond the made-up tools are words for the same wish: "will it rain"
is about the weather.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from training.data.pools import WEEKDAYS
from training.data.world import World


@dataclass(frozen=True, slots=True)
class Familiar:
    """A tool as JSON, a question, and the call that answers it."""

    tool: str
    name: str
    topic: str
    question: str
    arguments: dict[str, Any]


_Entry = tuple[str, str, str, str, str]

# topic; names; description; parameters (a "?" means optional); questions
_ENTRIES: Final[tuple[_Entry, ...]] = (
    ("get weather", "get_weather get_weather weather getWeather get_current_weather weather_lookup",
     "Get the current weather of a city|Get the weather in a given location|Current weather for a city",
     "city:place|location:place|city:place unit?:unit",
     "What is the weather in {0}?|What's the weather like in {0}?|How is the weather in {0} today?|Weather in {0}|"
     "Is it raining in {0}?|Will it rain in {0}?|Is it cold in {0}?|Tell me the weather in {0}.|"
     "What is the temperature in {0}?|Do I need an umbrella in {0}?|How warm is it in {0}?|what's the weather in {0}"),
    ("get forecast", "get_forecast getForecast weather_forecast",
     "Get the weather forecast of a city for some days|Forecast of the coming days",
     "city:place days:small|location:place days:small",
     "What is the forecast for {0} for {1} days?|Give me a {1} day forecast for {0}.|How will the weather be in {0} over the next {1} days?"),
    ("calculate", "calculator calculate evaluate_expression calc",
     "Calculate an arithmetic expression|Evaluate a mathematical expression", "expression:sum|expr:sum",
     "What is {0}?|Calculate {0}.|How much is {0}?|Compute {0}|Work out {0}.|Use the calculator: {0}"),
    ("send email", "send_email sendEmail email.send send_mail", "Send an email to someone|Send an email",
     "to:email subject:quoted|recipient:email body:quoted",
     'Send an email to {0} with the text "{1}".|Write a mail to {0} saying "{1}"|Email {0}: "{1}"|Mail "{1}" to {0}.'),
    ("send message", "send_message sendMessage message_user chat-send", "Send a message to a person|Send a chat message",
     "to:name text:quoted|recipient:name message:quoted",
     'Tell {0} "{1}".|Send a message to {0}: "{1}"|Write to {0} that "{1}"|Message {0} "{1}"|Let {0} know: "{1}"'),
    ("set timer", "set_timer setTimer start_timer timer.start", "Set a timer|Start a countdown timer",
     "minutes:small|duration_minutes:small",
     "Set a timer for {0} minutes.|Wake me in {0} minutes.|Start a {0} minute timer.|Remind me in {0} minutes|Timer for {0} minutes please"),
    ("search web", "web_search search_web webSearch google_search search", "Search the web|Search the internet for information",
     "query:words|q:words",
     'Search the web for {0}.|Look up {0} on the web.|Google {0}.|Find information about {0}.|Search for {0}|Search the internet for "{0}".|What can you find online about {0}?'),
    ("read file", "read_file readFile file.read open_file", "Read a file|Read the content of a text file",
     "path:path|file_path:path|filename:path",
     "Read the file {0}.|Show me {0}.|What is in {0}?|Open {0}.|Print the content of {0}|Read {0}|cat {0}"),
    ("write file", "write_file writeFile file.write save_file", "Write text to a file|Write content to a file",
     "path:path content:quoted|file_path:path text:quoted",
     'Write "{1}" to {0}.|Save "{1}" in the file {0}.|Put "{1}" into {0}.|Create the file {0} with the content "{1}".'),
    ("list files", "list_files listFiles list_directory ls", "List the files of a directory|List the entries of a folder",
     "path:folder|directory:folder",
     "List the files in {0}.|What files are in {0}?|ls {0}|Show me the folder {0}.|Which files does {0} hold?"),
    ("run command", "terminal run_command execute_command bash shell", "Run a command in the shell|Execute a shell command",
     "command:command|cmd:command",
     "Run {0}.|Execute `{0}`.|run {0}|Run the command {0}|Please run `{0}` and tell me what it printed.|Type {0} in the terminal."),
    ("create event", "create_event createEvent calendar.add add_calendar_event", "Create a calendar event|Add an event to the calendar",
     "title:word date:day time:time|title:word day:day",
     "Add {0} to my calendar on {1}.|Create an event {0} on {1}.|Plan {0} for {1}.|Put {0} into the calendar for {1}."),
    ("get time", "get_time getTime current_time clock", "Get the current time of a city|Get the local time in a place",
     "city:place|timezone_city:place|location:place",
     "What time is it in {0}?|Tell me the time in {0}.|How late is it in {0}?|What is the local time in {0}?"),
    ("translate text", "translate translate_text translateText", "Translate text into another language|Translate a text",
     "text:quoted language:language|text:quoted target:language",
     'Translate "{0}" into {1}.|How do you say "{0}" in {1}?|What is "{0}" in {1}?|Say "{0}" in {1}.'),
    ("play music", "play_music playMusic play_song music.play", "Play music|Play a song of an artist", "artist:name|query:name",
     "Play something by {0}.|I want to hear {0}.|Play music of {0}.|Put on {0}.|Play {0}"),
    ("get stock price", "get_stock_price getStockPrice stock_quote", "Get the price of a stock|Stock price by its symbol",
     "symbol:ticker|ticker:ticker", "What is the stock price of {0}?|How is {0} trading?|Price of {0} stock?|Get the quote of {0}."),
    ("convert currency", "convert_currency convertCurrency currency.convert exchange", "Convert an amount between currencies|Convert money",
     "amount:small from:currency to:currency", "Convert {0} {1} to {2}.|How much is {0} {1} in {2}?|What are {0} {1} in {2}?|Change {0} {1} into {2}."),
    ("turn on light", "turn_on_light lights_on light.on", "Turn on the light in a room|Switch on a lamp",
     "room:room", "Turn on the light in the {0}.|Switch on the lights in the {0}.|Lights on in the {0}|Make it bright in the {0}."),
    ("turn off light", "turn_off_light lights_off light.off", "Turn off the light in a room|Switch off a lamp",
     "room:room", "Turn off the light in the {0}.|Switch off the lights in the {0}.|Lights off in the {0}|Make it dark in the {0}."),
    ("book flight", "book_flight bookFlight flights.book", "Book a flight|Book a flight between two cities",
     "from:place to:place|origin:place destination:place", "Book a flight from {0} to {1}.|I want to fly from {0} to {1}.|Get me from {0} to {1} by plane."),
    ("find restaurant", "find_restaurants search_restaurant restaurantSearch", "Find restaurants in a city|Search for a place to eat",
     "city:place|location:place", "Where can I eat in {0}?|Find a restaurant in {0}.|I am hungry and in {0}.|Show me restaurants in {0}."),
    ("add todo", "add_todo addTask create_task todo.add", "Add a task to the list of things to do|Create a task",
     "task:quoted|title:quoted", 'Remind me to "{0}".|Add "{0}" to my list.|Add the task "{0}".|Note that I have to "{0}".'),
    ("remember fact", "memory save_memory remember", "Save a fact to the memory|Store something for later",
     "fact:quoted|content:quoted", 'Remember that "{0}".|Keep in mind: "{0}"|Save to memory: "{0}"|Do not forget "{0}".'),
    ("ask user", "clarify ask_user askQuestion", "Ask the user a question|Ask something back",
     "question:quoted", 'Ask me "{0}".|Ask the user "{0}"|Put this question to me: "{0}"'),
)  # fmt: skip

_COMMANDS: Final = (
    "echo hello", "ls -la", "pwd", "git status", "date", "whoami", "make test", "uname -a", "df -h", "git log",
    "python main.py", "npm install", "cat notes.txt", "ls", "uptime", "pip list", "git diff", "echo {w}", "cd {w}",
    "mkdir {w}", "rm {w}.txt", "touch {w}", "grep {w} notes.txt", "echo {w} {w2}", "python {w}.py", "cat {w}.md",
)  # fmt: skip
_CURRENCIES: Final = ("euros", "dollars", "yen", "pounds", "EUR", "USD", "JPY", "GBP", "CHF")
_LANGUAGES: Final = (
    "German",
    "French",
    "Spanish",
    "Italian",
    "Dutch",
    "Polish",
    "Japanese",
    "Greek",
)
_ROOMS: Final = ("kitchen", "bedroom", "hall", "cellar", "garage", "garden", "bathroom", "office")
_UNITS: Final = ("celsius", "fahrenheit")
_TYPES: Final = {"small": "integer", "unit": "enum"}


def draw_familiar(world: World) -> Familiar:
    """One tool, and a question that asks for it."""
    topic, names, descriptions, schemas, questions = world.pick(_ENTRIES)
    params = [part.partition(":")[::2] for part in world.pick(schemas.split("|")).split()]
    name = world.pick(names.split())
    question = world.pick(questions.split("|"))
    arguments: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    required = []
    for index, (key, kind) in enumerate(params):
        key = key.removesuffix("?")
        is_mentioned = f"{{{index}}}" in question
        properties[key] = _schema(key, kind)
        if is_mentioned:
            arguments[key] = _value(world, kind)
            required.append(key)
    question = question.format(*(arguments.get(key.removesuffix("?")) for key, _ in params))
    if params[-1][1] == "unit" and world.chance(0.5):
        arguments["unit"] = world.pick(_UNITS)
        question = question.rstrip("?.") + f" in {arguments['unit']}?"
    parameters = {"type": "object", "properties": properties, "required": required}
    description = world.pick(descriptions.split("|")) + world.pick((".", ".", ""))
    function = {"name": name, "description": description, "parameters": parameters}
    tool = json.dumps({"type": "function", "function": function})
    return Familiar(tool, name, topic, question, arguments)


def _schema(key: str, kind: str) -> dict[str, Any]:
    type_ = _TYPES.get(kind, "string")
    if type_ == "enum":
        return {"type": "string", "enum": list(_UNITS)}
    return {"type": type_, "description": f"The {key.replace('_', ' ')}."}


def _value(world: World, kind: str) -> Any:  # noqa: ANN401 - any JSON value
    closed = {"currency": _CURRENCIES, "language": _LANGUAGES, "room": _ROOMS, "day": WEEKDAYS}
    if kind in closed:
        return world.pick(closed[kind])
    match kind:
        case "place":
            return world.place()
        case "name":
            return world.name()
        case "small":
            return world.between(1, world.pick((10, 60, 500)))
        case "sum":
            return f"{world.between(2, 9999)} {world.pick('+-*/')} {world.between(2, 9999)}"
        case "email":
            return f"{world.name().lower()}@{world.word()}.com"
        case "path":
            return (
                world.pick(("/", "/tmp/", "", "/home/"))
                + f"{world.noun()}.{world.pick(('txt', 'md', 'py', 'json'))}"
            )  # noqa: S108
        case "folder":
            return world.pick(("/", "/home/", "/tmp/", "./")) + world.noun()  # noqa: S108
        case "command":
            return world.pick(_COMMANDS).format(w=world.noun(), w2=world.word())
        case "ticker":
            return "".join(
                world.pick("ABCDEFGHIKLMNOPRSTUVWXYZ") for _ in range(world.between(3, 4))
            )
        case "word":
            return world.noun()
        case "time":
            return f"{world.between(0, 23)}:00"
        case "words":
            return " ".join(world.word() for _ in range(world.between(1, 3)))
        case _:
            return " ".join(world.word() for _ in range(world.between(2, 6)))
