"""What the official Python client sees of a gateway, as JSON on stdout.

Runs in an environment of its own that has nothing but the client, of either major version, so it
imports nothing of ours. It observes; `test_clients` judges.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

import openai
import pydantic
from openai import AsyncOpenAI, OpenAI

BASE_URL, KEY = sys.argv[1:3]
PATIENCE_S = 60
LONG_PROMPT = "word and number 7 " * 600


class get_weather(pydantic.BaseModel):  # noqa: N801 - the tool's name
    """Get the weather of a city."""

    city: str
    days: int


def client(**options: Any) -> OpenAI:
    return OpenAI(**{"base_url": BASE_URL, "api_key": KEY, "max_retries": 0, **options})


def said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def weather_tool() -> Any:
    return openai.pydantic_function_tool(get_weather)


def models() -> Any:
    with client() as api:
        return {
            "ids": [model.id for model in api.models.list()],
            "one": api.models.retrieve("alpha").id,
        }


def chat() -> Any:
    with client() as api:
        answer = api.chat.completions.create(model="alpha", messages=said("Hi"))
    choice, usage = answer.choices[0], answer.usage
    return {
        "text": choice.message.content,
        "finish": choice.finish_reason,
        "adds_up": usage.prompt_tokens + usage.completion_tokens == usage.total_tokens,
    }


def stream() -> Any:
    with client() as api:
        chunks = list(
            api.chat.completions.create(
                model="alpha",
                messages=said("Hi"),
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    return {
        "text": "".join(choice.delta.content or "" for choice in choices),
        "finish": choices[-1].finish_reason,
        "in_pieces": len(choices) > 4,
        "usage_is_last": chunks[-1].usage is not None and not chunks[-1].choices,
        "one_id": len({chunk.id for chunk in chunks}) == 1,
    }


def stream_helper() -> Any:
    with client() as api, api.chat.completions.stream(model="alpha", messages=said("Hi")) as events:
        kinds = [event.type for event in events]
        final = events.get_final_completion()
    return {
        "text": final.choices[0].message.content,
        "finish": final.choices[0].finish_reason,
        "tells_the_end": "content.done" in kinds,
    }


def reasoning() -> Any:
    with client() as api:
        whole = api.chat.completions.create(model="alpha", messages=said("Think"))
        chunks = list(
            api.chat.completions.create(model="alpha", messages=said("Think"), stream=True)
        )
    message = whole.choices[0].message
    deltas = [chunk.choices[0].delta for chunk in chunks]
    return {
        "text": message.content,
        "thought": message.reasoning_content,
        "streamed": "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas),
    }


def tools() -> Any:
    with client() as api:
        answer = api.chat.completions.create(
            model="alpha", messages=said("The weather in Athens?"), tools=[weather_tool()]
        )
    return calls_of(answer.choices[0])


def calls_of(choice: Any) -> Any:
    return {
        "finish": choice.finish_reason,
        "calls": [
            [call.function.name, json.loads(call.function.arguments)]
            for call in choice.message.tool_calls
        ],
        "ids_differ": len({call.id for call in choice.message.tool_calls})
        == len(choice.message.tool_calls),
    }


def tools_stream() -> Any:
    calls: dict[int, list[str]] = {}
    pieces, finish = 0, None
    with client() as api:
        for chunk in api.chat.completions.create(
            model="alpha",
            messages=said("Weather of Athens and Paris?"),
            tools=[weather_tool()],
            stream=True,
        ):
            finish = chunk.choices[0].finish_reason or finish
            for delta in chunk.choices[0].delta.tool_calls or ():
                pieces += 1
                call = calls.setdefault(delta.index, ["", "", ""])
                call[0] += delta.id or ""
                call[1] += delta.function.name or ""
                call[2] += delta.function.arguments or ""
    return {
        "finish": finish,
        "calls": [[name, json.loads(arguments)] for _, name, arguments in calls.values()],
        "ids_differ": len({call[0] for call in calls.values()}) == len(calls),
        "in_pieces": pieces > 4,
    }


def tools_helper() -> Any:
    with (
        client() as api,
        api.chat.completions.stream(
            model="alpha", messages=said("Weather of Athens and Paris?"), tools=[weather_tool()]
        ) as events,
    ):
        done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        final = events.get_final_completion()
    return {
        **calls_of(final.choices[0]),
        "parsed": [event.parsed_arguments.model_dump() for event in done],
    }


def round_trip() -> Any:
    messages = said("The weather in Athens?")
    with client() as api:
        first = api.chat.completions.create(
            model="alpha", messages=messages, tools=[weather_tool()]
        )
        message = first.choices[0].message
        messages.append(message)
        for call in message.tool_calls:
            result = {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "clear"}'}
            messages.append(result)
        second = api.chat.completions.create(
            model="alpha", messages=messages, tools=[weather_tool()]
        )
    return {"text": second.choices[0].message.content}


def completions() -> Any:
    with client() as api:
        whole = api.completions.create(model="alpha", prompt="Once upon", max_tokens=50)
        chunks = list(api.completions.create(model="alpha", prompt="Once upon", stream=True))
    streamed = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    return {"text": whole.choices[0].text, "same": streamed == whole.choices[0].text}


def errors() -> Any:
    def ask(**fields: Any) -> Callable[[], Any]:
        def call() -> Any:
            body = {"model": "alpha", "messages": said("Hi"), **fields}
            with client() as api:
                return api.chat.completions.create(**body)

        return call

    def with_key(key: str) -> Any:
        with client(api_key=key) as api:
            return api.models.list()

    return {
        "wrong key": caught(lambda: with_key("sk-wrong")),
        "unknown model": caught(ask(model="gamma")),
        "bad body": caught(ask(n=0)),
        "over the window": caught(ask(model="narrow", messages=said(LONG_PROMPT))),
        "nobody serves it": caught(ask(model="nobody")),
        "no such endpoint": caught(lambda: client().images.generate(prompt="x")),
    }


def caught(call: Callable[[], Any]) -> Any:
    try:
        call()
    except openai.APIStatusError as error:
        body = error.body if isinstance(error.body, dict) else {}
        told = [type(error).__name__, error.status_code, body.get("code")]
        return [*told, "retry-after" in error.response.headers]
    return "no error"


def broken_stream() -> Any:
    """An engine that fails for good in mid-answer: what came, and what was raised."""
    text = ""
    with client() as api:
        try:
            for chunk in api.chat.completions.create(
                model="alpha", messages=said("break off"), stream=True
            ):
                text += chunk.choices[0].delta.content or ""
        except openai.APIError as error:
            return {"text": text, "raised": [type(error).__name__, error.message]}
    return {"text": text, "raised": None}


def busy() -> Any:
    """One place and one waiting place: of two who come then one waits and one is refused; a client
    that retries has its answer once there is room.
    """
    refused_once = threading.Event()

    def note(response: Any) -> None:
        if response.status_code == 429:
            refused_once.set()

    http = openai.DefaultHttpxClient(event_hooks={"response": [note]})
    with (
        client() as api,
        client(max_retries=20, http_client=http) as patient,
        ThreadPoolExecutor() as pool,
    ):
        place = api.chat.completions.create(
            model="narrow", messages=said("never stop"), stream=True
        )
        next(iter(place))
        both = [pool.submit(caught, lambda: ask_narrow(api)) for _ in range(2)]
        refused, queued = wait(both, return_when=FIRST_COMPLETED)
        retried = pool.submit(ask_narrow, patient)
        refused_once.wait(PATIENCE_S)
        place.close()
        return {
            "refused": refused.pop().result(),
            "queued": queued.pop().result(),
            "retried": retried.result(),
        }


def ask_narrow(api: OpenAI) -> str:
    """Streamed: an answer in one piece may be an agent's side call, for which there is room."""
    chunks = list(api.chat.completions.create(model="narrow", messages=said("Hi"), stream=True))
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def cancelled() -> Any:
    """A stream that is left frees the only place of its worker; asyncio's cancellation does too."""

    async def leave() -> None:
        async with AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0) as api:
            endless = await api.chat.completions.create(
                model="narrow", messages=said("never stop"), stream=True
            )
            async for chunk in endless:
                if chunk.choices[0].delta.content:
                    break
            await endless.close()

    async def cancel() -> None:
        task = asyncio.create_task(forever())
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def forever() -> None:
        async with AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0) as api:
            await api.chat.completions.create(model="narrow", messages=said("never stop"))

    with client(timeout=60) as api:
        asyncio.run(leave())
        after_leaving = ask_narrow(api)
        asyncio.run(cancel())
        return {"after leaving": after_leaving, "after cancelling": ask_narrow(api)}


def responses() -> Any:
    """Whole, streamed and through the helper; then a call and the answer to its result."""
    tool: Any = {
        "type": "function",
        "name": "get_weather",
        "parameters": get_weather.model_json_schema(),
        "strict": False,
    }
    asked = said("The weather in Athens?")
    with client() as api:
        whole = api.responses.create(model="alpha", input="Hi")
        events = list(api.responses.create(model="alpha", input="Hi", stream=True))
        with api.responses.stream(model="alpha", input="Hi") as stream:
            final = stream.until_done().get_final_response()
        called = api.responses.create(model="alpha", input=asked, tools=[tool])
        call: Any = called.output[-1]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        items = [item.model_dump(exclude_none=True) for item in called.output]
        answer = api.responses.create(model="alpha", input=[*asked, *items, result], tools=[tool])
        thought: Any = api.responses.create(model="alpha", input="Think").output[0]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    return {
        "texts": [whole.output_text, "".join(deltas), final.output_text],
        "ends": [events[0].type, events[-1].type],
        "numbered": [event.sequence_number for event in events] == list(range(len(events))),
        "call": [call.name, json.loads(call.arguments)],
        "text": answer.output_text,
        "thought": thought.content[0].text,
        "adds_up": whole.usage.input_tokens + whole.usage.output_tokens == whole.usage.total_tokens,
    }


CHECKS = (models, chat, stream, stream_helper, reasoning, tools, tools_stream, tools_helper)
# The wait that `busy` is told follows from how long the places of `narrow` were held before.
MORE = (responses, round_trip, completions, errors, broken_stream, cancelled, busy)

if __name__ == "__main__":
    wanted = sys.argv[3:]
    results = {}
    for check in (*CHECKS, *MORE):
        if not wanted or check.__name__ in wanted:
            print(check.__name__, file=sys.stderr, flush=True)
            results[check.__name__] = check()
    print(json.dumps(results))
