"""POST /tokenize and /detokenize over real HTTP, with the tokenizer that a worker brought."""

import threading
from typing import Any

import msgspec
import pytest
import trio

from gateway.app import edge_of
from gateway.http.routes import edge_app
from gateway.link import model_files
from gateway.prompt import STEP_CHARS, stepwise, tokenizer
from gateway.turn.model_texts import INLINE_SIZE, MAX_CHARS_AT_ONCE
from protocol.messages import Files, GetFiles, Submit
from tests.fakes.provider import FakeProvider, open_provider
from tests.fakes.running_gateway import chain_of, open_gateway, wait_until
from tests.fakes.served import PATIENCE_S, Reply, ask, served
from tests.fakes.text_files import make_tokenizer
from tests.fakes.whole_gateway import whole_gateway
from tests.fakes.worker import DIGEST, FakeWorker, WithoutFiles, prompt_ids

USER = [{"role": "user", "content": "Hi, what is the weather?"}]
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


async def test_text_goes_there_and_back() -> None:
    """Ids, their count, the window, the tokens' spellings; and the same text from the ids."""
    text = "The weather in Αθήνα 🙂 <|im_end|>"
    async with whole_gateway() as whole:
        reply = await whole.post("/tokenize", model="alpha", prompt=text, return_token_strs=True)
        answer = reply.json
        back = await whole.post("/detokenize", model="alpha", tokens=answer["tokens"])
        long = await whole.post("/v1/tokenize", prompt="stones " * 2000)
    ids = make_tokenizer().encode(text).ids
    assert answer["tokens"] == ids
    assert (answer["count"], answer["max_model_len"]) == (len(ids), 4096)
    assert answer["token_strs"] == make_tokenizer().encode(text).tokens
    assert back.json == {"prompt": text}
    assert long.json["count"] == len(long.json["tokens"]) > 2000
    assert long.json["token_strs"] is None


@pytest.mark.parametrize("extra", [{}, {"tools": [TOOL]}, {"reasoning_effort": "none"}])
async def test_a_chat_is_counted_as_a_turn_would(extra: dict[str, Any]) -> None:
    """The ids are those that the worker gets for the same messages and tools."""
    async with whole_gateway() as whole:
        reply = await whole.post("/tokenize", model="alpha", messages=USER, **extra)
        await whole.post("/v1/chat/completions", model="alpha", messages=USER, **extra)
        submit = await whole.worker.wait(Submit)
    assert reply.json["tokens"] == prompt_ids(submit)


async def test_the_opening_of_the_answer_may_be_left_out() -> None:
    """Without the generation prompt the ids end with the last message."""
    async with whole_gateway() as whole:
        whole_prompt = (await whole.post("/tokenize", messages=USER)).json["tokens"]
        bare = await whole.post("/tokenize", messages=USER, add_generation_prompt=False)
    shorter = bare.json["tokens"]
    assert whole_prompt[: len(shorter)] == shorter
    assert len(shorter) < len(whole_prompt)


@pytest.mark.parametrize(
    ("path", "fields", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": USER}, 400, "prompt"),
        ("/tokenize", {"prompt": 7}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "beta"}, 404, "model"),
        ("/tokenize", {"messages": [{"role": "wizard", "content": ""}]}, 400, "messages[0].role"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": [0, 99_999]}, 400, "tokens[1]"),
        ("/detokenize", {"tokens": [0], "model": ""}, 400, "model"),
    ],
)
async def test_what_cannot_be_is_refused(
    path: str, fields: dict[str, Any], status: int, param: str
) -> None:
    """One clear error each."""
    async with whole_gateway() as whole:
        reply = await whole.post(path, **fields)
    assert (reply.status, reply.json["error"]["param"]) == (status, param)


LONG = "stones and other words " * 10_000


async def test_long_texts_are_counted_as_short_ones() -> None:
    """They are encoded in steps: a count needs no more memory than a step, whatever it counts."""
    user = {"role": "user", "content": LONG}
    async with whole_gateway() as whole:
        text = (await whole.post("/tokenize", prompt=LONG)).json
        chat = (await whole.post("/tokenize", messages=[user])).json
        short = (await whole.post("/tokenize", messages=[{**user, "content": ""}])).json
        counted = await whole.post("/v1/messages/count_tokens", model="alpha", messages=[user])
    assert text["tokens"] == make_tokenizer().encode(LONG).ids
    assert chat["count"] == text["count"] + short["count"]
    assert counted.json["input_tokens"] >= chat["count"]


async def test_a_text_that_cannot_be_cut_is_refused_beyond_a_bound() -> None:
    """Such a text is encoded at once, and needs 150 bytes of memory for each of its tokens."""
    text = "0" * (MAX_CHARS_AT_ONCE + 1)
    user = {"role": "user", "content": text}
    async with whole_gateway() as whole:
        for path, fields in (
            ("/tokenize", {"prompt": text}),
            ("/tokenize", {"messages": [user]}),
            ("/v1/messages/count_tokens", {"messages": [user]}),
            ("/v1/responses/input_tokens", {"input": text}),
        ):
            reply = await whole.post(path, model="alpha", **fields)
            assert reply.status == 400, path
            assert "place to cut" in reply.json["error"]["message"]


async def test_a_long_text_is_cut_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop, in which all streams run, does not look through it."""
    threads: list[threading.Thread] = []

    def pieces_of(text: str) -> list[str]:
        threads.append(threading.current_thread())
        return [text]

    monkeypatch.setattr(stepwise, "pieces_of", pieces_of)
    async with whole_gateway() as whole:
        await whole.post("/tokenize", prompt=LONG)
        await whole.post("/v1/completions", model="alpha", prompt="0" * (STEP_CHARS + 1))
    assert threads
    assert threading.main_thread() not in threads


async def test_the_beginning_of_an_answer_is_encoded_as_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long one is encoded in a thread, and refused where it cannot be cut and only counted."""
    threads: list[threading.Thread] = []
    batch = tokenizer.encode_batch

    def encode_batch(used: Any, texts: Any, **fields: Any) -> Any:
        if sum(map(len, texts)) > INLINE_SIZE:
            threads.append(threading.current_thread())
        return batch(used, texts, **fields)

    said = [*USER, {"role": "assistant", "content": LONG}]
    endless = [*USER, {"role": "assistant", "content": "0" * (MAX_CHARS_AT_ONCE + 1)}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    async with whole_gateway() as whole:
        monkeypatch.setattr(tokenizer, "encode_batch", encode_batch)
        counted = await whole.post("/tokenize", model="alpha", messages=said, **fields)
        said[-1] = {**said[-1], "content": LONG[:3000]}
        chat = await whole.post("/v1/chat/completions", model="alpha", messages=said, **fields)
        refused = await whole.post("/tokenize", model="alpha", messages=endless, **fields)
    assert chat.status == 200
    assert counted.json["tokens"][-9:] == make_tokenizer().encode(LONG).ids[-9:]
    assert threading.main_thread() not in threads
    assert (refused.status, refused.json["error"]["code"]) == (400, "text_too_long")


async def test_nothing_is_no_tokens() -> None:
    """An empty text and an empty list are what they are."""
    async with whole_gateway() as whole:
        assert (await whole.post("/tokenize", prompt="")).json["tokens"] == []
        assert (await whole.post("/detokenize", tokens=[])).json == {"prompt": ""}


async def test_a_model_whose_tokenizer_is_not_here_yet_is_503() -> None:
    """A model whose tokenizer has not come yet is a 503 that says when to come back."""
    async with (
        open_gateway() as gateway,
        served(edge_app(edge_of(gateway.services))) as url,
    ):
        reply = await ask(url, "POST", "/tokenize", b'{"prompt":"a"}')
    assert reply.status == 503
    assert int(reply.headers["retry-after"]) > 0


async def test_a_model_with_providers_alone_has_no_tokenizer() -> None:
    """No later attempt can succeed, so asking again makes no sense."""
    counted = {"model": "alpha", "messages": [{"role": "user", "content": "Hi"}]}
    async with open_provider(FakeProvider()) as fake:
        model, tables = chain_of({"p0": fake})
        async with (
            open_gateway(models=[model], providers=tables) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            for path, fields in (
                ("/tokenize", {"model": "alpha", "prompt": "Hi"}),
                ("/v1/messages/count_tokens", counted),
                ("/v1/responses/input_tokens", {"model": "alpha", "input": "Hi"}),
            ):
                reply = await ask(url, "POST", path, msgspec.json.encode(fields))
                assert reply.status == 400, (path, reply)
                assert b"providers alone" in reply.body


@pytest.mark.parametrize(
    ("path", "fields"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})]
)
@pytest.mark.parametrize("is_there_first", [True, False])
async def test_a_tokenizer_that_nobody_can_give_any_more_is_503_at_once(
    path: str, fields: dict[str, Any], is_there_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its worker goes while it is waited for or was gone before; it says when to come
    back. Nobody waits for files that nobody sends.
    """
    monkeypatch.setattr(model_files, "WAIT_S", 10 * PATIENCE_S)
    async with (
        whole_gateway(WithoutFiles()) as whole,
        trio.open_nursery() as nursery,
    ):
        replies: list[Reply] = []

        async def post() -> None:
            replies.append(await whole.post(path, **fields))

        if is_there_first:
            nursery.start_soon(post)
            files = whole.gateway.services.files
            await wait_until(lambda: DIGEST in files._entries)
        whole.worker.fail_engine()
        await whole.gateway.wait_state("starting")
        if not is_there_first:
            nursery.start_soon(post)
        await wait_until(lambda: bool(replies))
    (reply,) = replies
    assert reply.status == 503
    assert reply.json["error"]["code"] == "unavailable"
    assert int(reply.headers["retry-after"]) > 0


async def test_a_tokenizer_is_waited_for_while_its_worker_is_there() -> None:
    """A request waits for a tokenizer while its worker is there, also when the worker comes back
    with another tokenizer meanwhile, since no worker has the old one.
    """
    worker = WithoutFiles()
    async with whole_gateway(worker) as whole, trio.open_nursery() as nursery:
        replies: list[Reply] = []

        async def post() -> None:
            replies.append(await whole.post("/tokenize", prompt="a"))

        nursery.start_soon(post)
        files = whole.gateway.services.files
        await wait_until(lambda: DIGEST in files._entries)
        worker.fail_engine()
        worker.change_files()
        worker.register()
        await worker.wait(GetFiles, count=2)
        FakeWorker.say(worker, Files(worker.facts.files_digest, worker.files))
        await wait_until(lambda: bool(replies))
    assert replies[0].json["tokens"] == make_tokenizer().encode("a").ids


async def test_a_tokenizer_that_was_forgotten_is_asked_for_again() -> None:
    """A fleet of many models keeps those that are used."""
    async with whole_gateway() as whole:
        assert (await whole.post("/tokenize", prompt="a")).status == 200
        whole.gateway.services.files._entries.clear()
        assert (await whole.post("/tokenize", prompt="a")).status == 200
        assert len(whole.worker.all_of(GetFiles)) == 2


async def test_a_tokenizer_that_is_here_outlasts_its_worker() -> None:
    """A tokenizer that has come outlasts its worker, and no worker is asked for it again."""
    async with whole_gateway() as whole:
        assert (await whole.post("/tokenize", prompt="a")).status == 200
        whole.worker.die()
        await whole.gateway.wait_state("down")
        assert (await whole.post("/tokenize", prompt="a")).status == 200


async def test_the_tokenizer_tells_of_itself() -> None:
    """The answer has the special tokens and the template, for clients that render themselves."""
    async with whole_gateway() as whole:
        for path in ("/tokenizer_info", "/v1/tokenizer_info?model=alpha"):
            info = (await whole.get(path)).json
            assert info["model_max_length"] == 4096
            assert {"bos_token", "eos_token", "pad_token", "chat_template"} <= set(info)
        unknown = await whole.get("/tokenizer_info?model=other")
    assert unknown.status == 404
