"""POST /v1/completions over real HTTP, answered by a worker over a real link."""

from typing import Any

import openai
import trio

from protocol.messages import Submit
from tests.fakes.text_files import make_tokenizer
from tests.fakes.whole_gateway import WholeGateway, whole_gateway
from tests.fakes.worker import FakeWorker, prompt_ids

TEXT = "The weather in Athens is warm."
PATH = "/v1/completions"


async def test_a_prompt_goes_to_the_worker_as_it_is() -> None:
    """No template: the worker sees the prompt's own ids, control tokens included."""
    prompt = "<|im_start|>user\nHi"
    async with whole_gateway() as whole:
        reply = await whole.post(PATH, model="alpha", prompt=prompt, max_tokens=500)
        submit = await whole.worker.wait(Submit)
    assert reply.status == 200
    body = reply.json
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == (TEXT, "stop", None)
    tokenizer = make_tokenizer()
    assert prompt_ids(submit) == tokenizer.encode(prompt).ids
    assert tokenizer.token_to_id("<|im_start|>") in prompt_ids(submit)
    assert body["usage"]["prompt_tokens"] == len(prompt_ids(submit))
    assert reply.headers["x-herma-worker"] == "w1"


async def test_several_prompts_are_numbered_choices() -> None:
    """Choices of prompt i with n each are i*n and on; usage is of all; ids go as they are."""
    async with whole_gateway() as whole:
        reply = await whole.post(PATH, model="alpha", prompt=[[1, 2], [3]], n=2, max_tokens=3)
        submits = whole.worker.all_of(Submit)
    body = reply.json
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert sorted(map(prompt_ids, submits)) == [[1, 2], [1, 2], [3], [3]]
    assert len({submit.seed for submit in submits}) == 4
    assert body["usage"]["completion_tokens"] == 12
    assert body["usage"]["prompt_tokens"] == 3


async def test_sixteen_tokens_unless_more_are_asked_for() -> None:
    """The API's own default."""
    worker = FakeWorker(text="one two three " * 20)
    async with whole_gateway(worker) as whole:
        reply = await whole.post(PATH, model="alpha", prompt="Count:")
    assert reply.json["choices"][0]["finish_reason"] == "length"
    assert reply.json["usage"]["completion_tokens"] == 16


async def test_echo_gives_the_prompt_back() -> None:
    """`echo` gives the prompt back once per choice, also when it came as ids."""
    ids = make_tokenizer().encode("The weather").ids
    async with whole_gateway() as whole:
        text = await whole.post(PATH, model="alpha", prompt=["A: ", "B: "], echo=True, n=2)
        by_ids = await whole.post(PATH, model="alpha", prompt=ids, echo=True)
        events = await whole.stream(PATH, model="alpha", prompt="A: ", echo=True)
    starts = [choice["text"][:3] for choice in text.json["choices"]]
    assert starts == ["A: ", "A: ", "B: ", "B: "]
    assert by_ids.json["choices"][0]["text"].startswith("The weather")
    assert events[0]["choices"][0]["text"] == "A: "


async def test_a_stream_is_the_body_in_pieces() -> None:
    """Texts by index, one end each, usage last if asked for, then [DONE]."""
    asked: dict[str, Any] = {"model": "alpha", "prompt": ["a", "b", "c"], "max_tokens": 99}
    async with whole_gateway() as whole:
        body = (await whole.post(PATH, **asked)).json
        options = {"include_usage": True}
        *chunks, usage, done = await whole.stream(PATH, **asked, stream_options=options)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == body["usage"]["total_tokens"]
    texts, ends = ["", "", ""], ["", "", ""]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        ends[choice["index"]] += choice["finish_reason"] or ""
    assert texts == [TEXT] * 3
    assert ends == ["stop"] * 3


async def test_logprobs_have_the_form_of_this_api() -> None:
    """Lists of tokens, scores, alternatives and offsets, that fit the text."""
    async with whole_gateway() as whole:
        reply = await whole.post(PATH, model="alpha", prompt="x", logprobs=2, max_tokens=99)
    (choice,) = reply.json["choices"]
    scores = choice["logprobs"]
    assert "".join(scores["tokens"]) == choice["text"] == TEXT
    assert scores["text_offset"][:2] == [0, len(scores["tokens"][0])]
    assert set(scores["token_logprobs"]) == {-0.5}


async def test_a_stop_string_ends_it_and_what_cannot_be_is_refused() -> None:
    """Stops work as in chats; unknown ids and models, and long prompts, are clear errors."""
    worker = FakeWorker(context_length=64)
    async with whole_gateway(worker) as whole:
        stopped = await whole.post(PATH, model="alpha", prompt="x", stop=" in")
        unknown_id = await whole.post(PATH, model="alpha", prompt=[1, 99_999])
        unknown_model = await whole.post(PATH, model="beta", prompt="x")
        too_long = await whole.post(PATH, model="alpha", prompt=["x", "warm stones " * 200])
        biased = await whole.post(PATH, model="alpha", prompt="x", logit_bias={"1": 5})
    assert stopped.json["choices"][0]["text"] == "The weather"
    assert (unknown_id.status, unknown_id.json["error"]["param"]) == (400, "prompt[1]")
    assert (unknown_model.status, unknown_model.json["error"]["code"]) == (404, "model_not_found")
    assert too_long.json["error"]["code"] == "context_length_exceeded"
    assert "your prompt resulted in" in too_long.json["error"]["message"]
    assert "messages" not in too_long.json["error"]["message"]
    assert too_long.json["error"]["param"] == "prompt"
    assert biased.json["error"]["param"] == "logit_bias"


async def test_the_official_client_completes() -> None:
    """The openai client reads both ways of answering."""
    async with whole_gateway() as whole:
        await trio.to_thread.run_sync(_use_official_client, whole)


def _use_official_client(whole: WholeGateway) -> None:
    with openai.OpenAI(base_url=f"{whole.url}/v1", api_key="any", max_retries=0) as client:
        answer = client.completions.create(model="alpha", prompt="x", max_tokens=99)
        assert answer.choices[0].text == TEXT
        chunks = client.completions.create(model="alpha", prompt="x", max_tokens=99, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
