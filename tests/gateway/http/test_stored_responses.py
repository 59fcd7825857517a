"""Stored responses over real HTTP: history, replay, background, deletion, restarts."""

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h11
import msgspec
import pytest
import trio

from config import KeyConfig, ResponsesConfig, hash_api_key
from gateway.app import edge_of
from gateway.http.routes import edge_app
from gateway.turn import Caller
from gateway.turn.encoding import Encoding
from protocol.messages import Submit
from tests.fakes.responses_checker import ResponsesChecker, check_responses
from tests.fakes.running_gateway import open_gateway, wait_until
from tests.fakes.served import PATIENCE_S, Reply, ask, connected, served
from tests.fakes.text_files import CHAT_TEMPLATE, make_text_files, make_tokenizer
from tests.fakes.worker import FakeWorker, open_worker, prompt_ids

PATH = "/v1/responses"
CONVERSATIONS = "/v1/conversations"
KEYS = tuple(
    KeyConfig(name=name, hash=hash_api_key(name), **rest)  # type: ignore[arg-type]
    for name, rest in (("anna", {}), ("ben", {}), ("private", {"store": "never"}))
)


class Stored:
    """A gateway that stores, and its worker."""

    def __init__(self, url: str, worker: FakeWorker, gateway: Any) -> None:
        self.url = url
        self.worker = worker
        self.gateway = gateway

    async def ask(self, method: str, path: str, key: str = "anna", **fields: Any) -> Reply:
        body = msgspec.json.encode(fields) if fields else b""
        return await ask(self.url, method, path, body, authorization=f"Bearer {key}")

    async def create(self, said: Any = "Hi", key: str = "anna", **fields: Any) -> Any:
        reply = await self.ask("POST", PATH, key, model="alpha", input=said, **fields)
        assert reply.status == 200, reply
        return reply.json

    async def get(self, response_id: str, key: str = "anna") -> Any:
        return (await self.ask("GET", f"{PATH}/{response_id}", key)).json

    async def until(self, response_id: str, *statuses: str) -> Any:
        """The response once it has one of the statuses."""
        with trio.fail_after(PATIENCE_S):
            while (found := await self.get(response_id))["status"] not in statuses:  # noqa: ASYNC110 - each look is a request
                await trio.sleep(0.01)
        return found

    async def prompt(self) -> str:
        """The last prompt that the worker got."""
        ids = prompt_ids(self.worker.all_of(Submit)[-1])
        return make_tokenizer().decode(ids, skip_special_tokens=False)


@asynccontextmanager
async def stored(
    folder: Path, worker: FakeWorker | None = None, **config: Any
) -> AsyncIterator[Stored]:
    async with (
        open_gateway(
            keys=KEYS,
            ledger=folder / "ledger.sqlite",
            responses=ResponsesConfig(**config),
            keep_alive_s=0.2,
        ) as gateway,
        open_worker(gateway.address, worker) as fake,
    ):
        await gateway.wait_state("ready")
        async with served(edge_app(edge_of(gateway.services))) as url:
            yield Stored(url, fake, gateway)


async def test_a_response_goes_on_from_another(tmp_path: Path) -> None:
    """The model sees the whole history without the older instructions; a restart changes nothing,
    and the list of input items is what the model saw. A count includes the history.
    """
    async with stored(tmp_path) as one:
        first = await one.create("First question", instructions="Be terse.")
        second = await one.create("Second", previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        prompt = await one.prompt()
        assert "First question" in prompt
        assert "Athens" in prompt
        assert "Be terse." not in prompt
    async with stored(tmp_path) as one:
        assert await one.get(first["id"]) == first
        asked = {"model": "alpha", "input": "Third", "previous_response_id": second["id"]}
        count = (await one.ask("POST", f"{PATH}/input_tokens", **asked)).json["input_tokens"]
        await one.create("Third", previous_response_id=second["id"])
        assert count == len(prompt_ids(one.worker.all_of(Submit)[-1]))
        prompt = await one.prompt()
        assert prompt.index("First") < prompt.index("Athens") < prompt.index("Third")
        path = f"{PATH}/{second['id']}/input_items"
        page = (await one.ask("GET", f"{path}?order=asc&limit=2")).json
        assert [item["role"] for item in page["data"]] == ["user", "assistant"]
        assert page["has_more"]
        rest = (await one.ask("GET", f"{path}?order=asc&after={page['last_id']}")).json
        assert rest["data"][0]["content"] == [{"type": "input_text", "text": "Second"}]
        assert not rest["has_more"]
        newest = (await one.ask("GET", f"{path}?limit=1")).json
        assert newest["data"] == rest["data"]
        assert (await one.ask("GET", f"{path}?after=&limit=1")).json == newest
        for name in ("order", "limit"):
            refused = await one.ask("GET", f"{path}?{name}=")
            assert (refused.status, refused.json["error"]["param"]) == (400, name)


async def test_items_can_be_named_instead_of_sent(tmp_path: Path) -> None:
    """A client that stores sends what the model wrote by its id only. The model sees the item, and
    the new response holds it, whatever becomes of the older one. An id of nothing is an error, not
    a hole in the history.
    """
    async with stored(tmp_path) as one:
        first = await one.create("First question")
        whole = [{"role": "user", "content": "First question"}, *first["output"]]
        await one.create([*whole, {"role": "user", "content": "Second"}])
        expected = await one.prompt()
        path = f"{PATH}/{first['id']}/input_items"
        (given,) = (await one.ask("GET", path)).json["data"]
        names = [{"id": given["id"]}]
        names += [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        named = [*names, {"role": "user", "content": "Second"}]
        second = await one.create(named)
        assert await one.prompt() == expected
        fields = {"model": "alpha", "input": named}
        for key in ("ben", "private"):
            reply = await one.ask("POST", PATH, key, **fields)
            assert (reply.status, reply.json["error"]["param"]) == (404, "input"), key
            assert f"'{given['id']}'" in reply.json["error"]["message"]
        kept = await one.ask("POST", CONVERSATIONS, items=names)
        assert (await one.ask("POST", CONVERSATIONS, "ben", items=names)).status == 404
        await one.create("Second", conversation=kept.json["id"])
        assert await one.prompt() == expected
        await one.ask("DELETE", f"{PATH}/{first['id']}")
        assert (await one.ask("POST", PATH, **fields)).status == 404
        gone = {"type": "item_reference", "id": "rs_0123_0"}
        for key in ("anna", "private"):
            await one.create([gone, {"role": "user", "content": "Second"}], key)
        await one.create("Third", previous_response_id=second["id"])
        assert "First question" in await one.prompt()


SHOWS_THOUGHTS = CHAT_TEMPLATE.replace(
    "'<|im_start|>assistant\\n' + message.content",
    "'<|im_start|>assistant\\n[' + (message.reasoning_content or '') + ']' + message.content",
)


async def test_a_thought_comes_back_by_its_id(tmp_path: Path) -> None:
    """OpenAI's own reasoning has nothing to send back but its id, so clients keep no more of it:
    langchain-openai 1.7.4 streams leave `content` empty. The model sees the stored thought, of the
    same key alone. One that is gone is left out, and a thought that was sent stays as it was sent.
    """
    text = "<think>So be it.</think>The weather in Athens is warm."
    worker = FakeWorker(text=text, files=make_text_files(template=SHOWS_THOUGHTS))
    async with stored(tmp_path, worker) as one:
        first = await one.create("First question")
        thought, said = first["output"]
        asked = {"role": "user", "content": "First question"}
        last = {"role": "user", "content": "Second"}
        await one.create([asked, thought, said, last])
        expected = await one.prompt()
        assert "[So be it.]The weather" in expected
        for content in (None, [], [{"type": "reasoning_text", "text": ""}]):
            hollow = {"type": "reasoning", "id": thought["id"], "summary": [], "content": content}
            await one.create([asked, hollow, said, last])
            assert await one.prompt() == expected
        await one.create([asked, hollow, said, last], "ben")
        assert "[]The weather" in await one.prompt()
        own = {**hollow, "summary": [{"type": "summary_text", "text": "Mine."}]}
        await one.create([asked, own, said, last])
        assert "[Mine.]The weather" in await one.prompt()
        await one.ask("DELETE", f"{PATH}/{first['id']}")
        await one.create([asked, {**hollow, "id": "rs_1"}, said, last])
        assert "[]The weather" in await one.prompt()


async def test_another_key_s_response_does_not_exist(tmp_path: Path) -> None:
    """A response of another key does not exist, and neither does one that the request, the key or
    the configuration forbids to store.
    """
    async with stored(tmp_path) as one:
        first = await one.create()
        for method, path in (
            ("GET", f"{PATH}/{first['id']}"),
            ("GET", f"{PATH}/{first['id']}?stream=true"),
            ("DELETE", f"{PATH}/{first['id']}"),
            ("POST", f"{PATH}/{first['id']}/cancel"),
            ("GET", f"{PATH}/{first['id']}/input_items"),
        ):
            assert (await one.ask(method, path, "ben")).status == 404, path
        fields = {"model": "alpha", "input": "x", "previous_response_id": first["id"]}
        reply = await one.ask("POST", PATH, "ben", **fields)
        assert (reply.status, reply.json["error"]["code"]) == (404, "previous_response_not_found")
        for key, rest in (("anna", {"store": False}), ("private", {"store": True})):
            unkept = await one.create(key=key, **rest)
            assert unkept["store"] is False
            assert (await one.ask("GET", f"{PATH}/{unkept['id']}", key)).status == 404
        refused = await one.ask("POST", PATH, "private", model="alpha", input="", background=True)
        assert (refused.status, refused.json["error"]["param"]) == (400, "background")
        assert (await one.ask("POST", CONVERSATIONS, "private", metadata={})).status == 403
        assert (await one.get(first["id"]))["id"] == first["id"]


async def test_a_policy_of_never_stores_nothing(tmp_path: Path) -> None:
    """A policy of never stores nothing, and makes no file."""
    async with stored(tmp_path, store="never") as one:
        assert (await one.create())["store"] is False
        assert not (tmp_path / "responses.sqlite").exists()


async def test_a_deleted_response_is_gone(tmp_path: Path) -> None:
    """A deleted response is gone, also for responses that continue it, whose history it was."""
    async with stored(tmp_path) as one:
        first = await one.create()
        second = await one.create(previous_response_id=first["id"])
        gone = await one.ask("DELETE", f"{PATH}/{first['id']}")
        assert gone.json == {"id": first["id"], "object": "response.deleted", "deleted": True}
        assert (await one.ask("GET", f"{PATH}/{first['id']}")).status == 404
        assert (await one.ask("DELETE", f"{PATH}/{first['id']}")).status == 404
        fields = {"model": "alpha", "input": "x", "previous_response_id": second["id"]}
        assert (await one.ask("POST", PATH, **fields)).status == 404


async def test_a_stream_can_be_read_again_from_any_event(tmp_path: Path) -> None:
    """Byte for byte, with its numbers and ids; one that was not streamed has none."""
    async with stored(tmp_path) as one:
        reply = await one.ask("POST", PATH, model="alpha", input="Hi", stream=True)
        checked = check_responses(reply.body)
        assert checked.response is not None
        path = f"{PATH}/{checked.response['id']}?stream=true"
        again = await one.ask("GET", path)
        assert again.body == reply.body
        assert again.headers["content-type"].startswith("text/event-stream")
        events = reply.body.split(b"\n\n")[:-1]
        for after in (0, 3, len(events) - 2, len(events) - 1, 10_000):
            rest = (await one.ask("GET", f"{path}&starting_after={after}")).body
            assert rest == b"".join(event + b"\n\n" for event in events[after + 1 :])
        assert await one.get(checked.response["id"]) == checked.response
        whole = await one.create()
        refused = await one.ask("GET", f"{PATH}/{whole['id']}?stream=true")
        assert (refused.status, refused.json["error"]["param"]) == (400, "stream")
        wrong = await one.ask("GET", f"{PATH}/{whole['id']}?starting_after=1")
        assert wrong.status == 400


async def test_an_answer_that_its_client_leaves_is_not_kept(tmp_path: Path) -> None:
    """An answer whose client leaves is not kept, even if its beginning was stored."""
    worker = FakeWorker(text="word " * 40)
    worker.pause_after = 20
    async with stored(tmp_path, worker) as one:
        body = msgspec.json.encode({"model": "alpha", "input": "Hi", "stream": True})
        async with connected(one.url) as client:
            head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer anna\r\n"
            await client.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            data = b""
            while b"output_text.delta" not in data:
                data += await client.stream.receive_some(65_536)
        response_id = data[data.index(b'"resp_') + 1 :].split(b'"')[0].decode()
        await wait_until(lambda: one.gateway.services.open_turns.count == 0)
        assert (await one.ask("GET", f"{PATH}/{response_id}")).status == 404


async def test_a_background_response_is_made_without_its_client(tmp_path: Path) -> None:
    """Queued at once, in progress when a worker has it, completed at last; polled and streamed, by
    several clients, from the first event or a later one.
    """
    worker = FakeWorker()
    worker.pause_after = 4
    async with stored(tmp_path, worker) as one:
        made = await one.create(background=True)
        assert (made["status"], made["background"], made["output"]) == ("queued", True, [])
        await one.until(made["id"], "in_progress")
        path = f"{PATH}/{made['id']}?stream=true"
        streams = [b"", b"", b""]

        async def read(number: int, query: str) -> None:
            async with connected(one.url) as client:
                head = (
                    f"GET {path}{query} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer anna\r\n\r\n"
                )
                await client.send(head.encode())
                await client.expect()
                while not isinstance(event := await client.event(), h11.EndOfMessage):
                    streams[number] += bytes(event.data) if isinstance(event, h11.Data) else b""

        async with trio.open_nursery() as nursery:
            for number, query in enumerate(("&starting_after=3", "", "")):
                nursery.start_soon(read, number, query)
            await wait_until(lambda: all(b": still running" in stream for stream in streams))
            worker.resume()
        done = await one.until(made["id"], "completed")
        checked = check_responses(streams[-1])
        assert checked.response == done
        assert checked.kinds[:3] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        quiet = [b"".join(_events(stream)) for stream in streams]
        assert quiet[1] == quiet[2]
        assert quiet[2].endswith(quiet[0])
        assert b'"sequence_number":4}' in quiet[0][:2000]
        again = (await one.ask("GET", path)).body
        assert again == quiet[2]


def _events(stream: bytes) -> list[bytes]:
    parts = stream.split(b"\n\n")[:-1]
    return [part + b"\n\n" for part in parts if not part.startswith(b":")]


async def test_a_background_stream_outlives_its_connection(tmp_path: Path) -> None:
    """The client that created it leaves, and reads on from the last event that it has."""
    worker = FakeWorker()
    worker.pause_after = 4
    async with stored(tmp_path, worker) as one:
        fields = {"model": "alpha", "input": "Hi", "stream": True, "background": True}
        body = msgspec.json.encode(fields)
        data = b""
        async with connected(one.url) as client:
            head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer anna\r\n"
            await client.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            while b"output_text.delta" not in data:
                data += await client.stream.receive_some(65_536)
        worker.resume()
        events = [data[data.index(b"event: ") :].split(b"\r\n")[0] + b"\n\n"]
        first = msgspec.json.decode(events[0].partition(b"data: ")[2].partition(b"\n")[0])
        response_id = first["response"]["id"]
        await one.until(response_id, "completed")
        path = f"{PATH}/{response_id}?stream=true"
        whole = (await one.ask("GET", path)).body
        late = (await one.ask("GET", f"{path}&starting_after=2")).body
        assert whole.endswith(late)
        assert check_responses(whole).text


async def test_a_background_response_can_be_cancelled(tmp_path: Path) -> None:
    """The partial response is kept, its stream ends, and the work on the engine ends. Other
    responses cannot be cancelled, and a second cancellation is no error.
    """
    worker = FakeWorker(text="word " * 40)
    worker.pause_after = 8
    async with stored(tmp_path, worker) as one:
        made = await one.create(background=True)
        await wait_until(lambda: bool(worker.running))
        with trio.fail_after(PATIENCE_S):
            while b"output_text.delta" not in (await _tail(one, made["id"])):
                pass
        path = f"{PATH}/{made['id']}/cancel"
        cancelled = (await one.ask("POST", path)).json
        assert cancelled["status"] == "cancelled"
        assert cancelled["output"][0]["status"] == "incomplete"
        assert (await one.ask("POST", path)).json == cancelled
        await wait_until(lambda: not worker.running)
        stream = await one.ask("GET", f"{PATH}/{made['id']}?stream=true")
        assert check_responses(stream.body).response == cancelled
        worker.pause_after = None
        plain = await one.create()
        refused = await one.ask("POST", f"{PATH}/{plain['id']}/cancel")
        assert refused.status == 400
        assert (await one.ask("POST", f"{PATH}/resp_none/cancel")).status == 404


async def _tail(one: Stored, response_id: str) -> bytes:
    """What a follower gets within a moment."""
    data = b""
    async with connected(one.url) as client:
        head = f"GET {PATH}/{response_id}?stream=true HTTP/1.1\r\nhost: x\r\n"
        await client.send(f"{head}authorization: Bearer anna\r\n\r\n".encode())
        with trio.move_on_after(0.3):
            while True:
                data += await client.stream.receive_some(65_536)
    return data


async def test_background_responses_are_bounded(tmp_path: Path) -> None:
    """The next one is told to come back; deleting one makes room."""
    worker = FakeWorker()
    worker.pause_after = 1
    async with stored(tmp_path, worker, max_background=1) as one:
        made = await one.create(background=True)
        fields = {"model": "alpha", "input": "x", "background": True}
        refused = await one.ask("POST", PATH, **fields)
        assert (refused.status, refused.headers["retry-after"]) == (429, "5")
        assert (await one.ask("DELETE", f"{PATH}/{made['id']}")).status == 200
        assert (await one.create(background=True))["background"] is True


async def test_what_runs_when_the_gateway_stops_has_failed(tmp_path: Path) -> None:
    """A response that runs when the gateway stops has failed, with the reason, also in its stream,
    and with the items that were done.
    """
    worker = FakeWorker(text="<think>So.</think>The weather in Athens is warm.")
    worker.pause_after = 12
    async with stored(tmp_path, worker) as one:
        made = await one.create(background=True)
        with trio.fail_after(PATIENCE_S):
            while b"output_text.delta" not in (await _tail(one, made["id"])):
                pass
    async with stored(tmp_path) as one:
        failed = await one.get(made["id"])
        assert failed["status"] == "failed"
        assert "gateway stopped" in failed["error"]["message"]
        assert [item["type"] for item in failed["output"]] == ["reasoning"]
        stream = await one.ask("GET", f"{PATH}/{made['id']}?stream=true")
        assert check_responses(stream.body).response == failed


async def test_a_conversation_takes_as_many_values_as_other_bodies(tmp_path: Path) -> None:
    """A body with more would be decoded where all streams run; 12,000 items are checked apart."""
    item = {"role": "user", "content": "a"}
    async with stored(tmp_path) as one:
        refused = await one.ask("POST", CONVERSATIONS, items=[item], metadata={"a": [[]] * 100_000})
        assert (refused.status, refused.json["error"]["code"]) == (400, "too_many_values")
        made = (await one.ask("POST", CONVERSATIONS, items=[item] * 12_000)).json
        page = await one.ask("GET", f"{CONVERSATIONS}/{made['id']}/items?limit=1&order=asc")
        assert page.json["data"][0]["content"][0]["text"] == "a"


async def test_a_conversation_grows_by_its_responses(tmp_path: Path) -> None:
    """Items in their order; a malformed call in it is no error later. It always tells the second
    in which it was created, though each look at the clock is a second later.
    """
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": [}'}
    result = {"type": "function_call_output", "call_id": "c", "output": "no"}
    async with stored(tmp_path) as one:
        seconds = itertools.count(1_900_000_000)
        one.gateway.services.stored._archive.store._now = seconds.__next__
        items = [{"role": "user", "content": "Remember 42."}, call, result]
        made = (await one.ask("POST", CONVERSATIONS, items=items, metadata={"a": "b"})).json
        path = f"{CONVERSATIONS}/{made['id']}"
        assert (await one.ask("GET", path)).json == made
        for conversation in (made["id"], {"id": made["id"]}):
            answer = await one.create("Go on", conversation=conversation)
            assert answer["conversation"] == {"id": made["id"]}
        assert "Remember 42." in await one.prompt()
        page = (await one.ask("GET", f"{path}/items?order=asc")).json
        kinds = [item.get("role") or item["type"] for item in page["data"]]
        assert kinds == ["user", call["type"], result["type"], *["user", "assistant"] * 2]
        assert len({item["id"] for item in page["data"]}) == 7
        added = await one.ask("POST", f"{path}/items", items=[{"role": "user", "content": "X"}])
        item_id = added.json["data"][0]["id"]
        assert (await one.ask("GET", f"{path}/items/{item_id}")).json["id"] == item_id
        assert (await one.ask("DELETE", f"{path}/items/{item_id}")).json == made
        assert (await one.ask("GET", f"{path}/items/{item_id}")).status == 404
        changed = (await one.ask("POST", path, metadata={"c": "d"})).json
        assert changed["metadata"] == {"c": "d"}
        assert (await one.ask("GET", path, "ben")).status == 404
        refused = await one.ask("POST", PATH, "ben", model="alpha", input="x", conversation="c")
        assert refused.status == 404
        bad = await one.ask("POST", f"{path}/items", items=[{"role": "robot", "content": "X"}])
        assert (bad.status, bad.json["error"]["param"]) == (400, "items[0].role")
        assert (await one.ask("DELETE", path)).json["deleted"] is True
        assert (await one.ask("GET", path)).status == 404


async def test_two_processes_share_what_is_stored(tmp_path: Path) -> None:
    """One follows, cancels and continues what the other makes."""
    from gateway.gateway_index import GatewayIndex

    worker = FakeWorker(text="word " * 40)
    worker.pause_after = 8
    async with stored(tmp_path, worker) as one:
        stored_here = one.gateway.services.stored
        stored_here._archive._num_processes = 2
        other_index = GatewayIndex(1, 2)
        async with (
            open_gateway(
                keys=KEYS,
                ledger=tmp_path / "ledger.1.sqlite",
                gateway_index=other_index,
                worker_bind=f"ipc://{tmp_path}/w",
            ) as gateway,
            served(edge_app(edge_of(gateway.services))) as url,
        ):
            two = Stored(url, worker, gateway)
            first = await one.create("x", max_output_tokens=2)
            assert await two.get(first["id"]) == first
            made = await one.create(background=True)
            checked: list[ResponsesChecker] = []

            async def follow() -> None:
                reply = await two.ask("GET", f"{PATH}/{made['id']}?stream=true")
                checked.append(check_responses(reply.body))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                await one.until(made["id"], "in_progress")
                cancelled = (await two.ask("POST", f"{PATH}/{made['id']}/cancel")).json
            assert cancelled["status"] == "cancelled"
            assert checked[0].response == cancelled


@pytest.mark.parametrize(("num_items", "num_chars"), [(3, 40_000), (80, 1000)])
async def test_items_count_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_items: int, num_chars: int
) -> None:
    """What waits for a thread is bounded and shared by bytes, however few items hold them."""
    sizes: list[int] = []
    whole = Encoding.run

    async def run(self: Encoding, caller: Caller, size: int, work: Callable[[], object]) -> object:
        sizes.append(size)
        return await whole(self, caller, size, work)

    items = [{"role": "user", "content": "a" * num_chars}] * num_items
    async with stored(tmp_path) as one:
        monkeypatch.setattr(Encoding, "run", run)
        made = await one.ask("POST", CONVERSATIONS, items=items)
        assert made.status == 200
        assert sizes
        assert set(sizes) == {len(msgspec.json.encode({"items": items}))}
        sizes.clear()
        path = f"{CONVERSATIONS}/{made.json['id']}/items"
        assert (await one.ask("POST", path, items=items)).status == 200
        assert sizes
        assert set(sizes) == {len(msgspec.json.encode({"items": items}))}
