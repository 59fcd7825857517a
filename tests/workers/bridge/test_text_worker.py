"""Real workers in front of a server that takes and gives text, against a real gateway end."""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from protocol.messages import (
    RELAY_CHUNK_BYTES,
    RELAY_WINDOW_BYTES,
    Abort,
    BlocksStored,
    Fault,
    Rejected,
    Relay,
    RelayChunk,
    RelayCredit,
    RelayData,
    RelayEnd,
    RelayFacts,
    RelayHead,
    RelayTaken,
)
from protocol.prefill import form_in
from tests.fakes.foreign_engine import WINDOW
from tests.fakes.foreign_process import foreign_process, kill_launched, stub_argv, told, wait_told
from tests.fakes.gateway_end import GatewayEnd, open_gateway_end, submission
from tests.fakes.ports import free_ports
from tests.fakes.text_engine import SPEECH_BYTES, answer_to
from tests.fakes.worker_process import worker_process

A = b"a" * 16
JSON = (("content-type", "application/json"),)
KEYS: dict[str, Any] = {"engine": "openai", "model": "there", "probe_context": 64}


def chat(**fields: Any) -> bytes:
    message = {"role": "user", "content": "hello"}
    return msgspec.json.encode({"model": "there", "messages": [message], **fields})


def relay(target: str, body: bytes, **fields: Any) -> Relay:
    """A request of one frame, or the beginning of a longer one."""
    first = body[:RELAY_CHUNK_BYTES]
    return Relay(A, 1, "echo", target, JSON, len(body), first, **fields)


async def body_of(gateway: GatewayEnd, attempt: int = 1) -> bytes:
    """The whole body of the response to `A`, in the order of its offsets."""
    end = await gateway.wait(RelayEnd, lambda m: m.attempt == attempt)
    assert end.error is None, end
    data = b""
    for piece in (m for m in gateway.all_of(RelayData) if m.attempt == attempt):
        assert piece.offset == len(data)
        data += piece.data
    assert len(data) == end.num_bytes
    return data


async def test_a_chat_passes_unchanged(tmp_path: Path) -> None:
    """A launched server without `/health`: its facts, its window, the bytes of its answer, the
    digests of the prompt among what it holds; tokens are refused, and no refusal tells the key.
    """
    port = str(free_ports(1))
    launch = {"argv": stub_argv(port, kind="openai", key="sk-1")}
    keys = {**KEYS, "api_key_env": "STUB_KEY", "environ": {"STUB_KEY": "sk-1"}}
    url = f"http://127.0.0.1:{port}"
    async with open_gateway_end() as gateway:
        with worker_process(
            tmp_path, gateway.address, url=url, launch=launch, refused_fields=["x_refused"], **keys
        ):
            facts = (await gateway.wait_ready()).engine
            assert facts is not None
            assert facts.relay == RelayFacts("there", ("x_refused",))
            assert (facts.kind, facts.context_length, facts.files_digest) == (
                "openai",
                WINDOW,
                bytes(16),
            )
            gateway.send(relay("/v1/chat/completions", chat(x_field=[1]), digests=b"d" * 16))
            answer = msgspec.json.decode(await body_of(gateway))
            assert answer["choices"][0]["message"]["content"] == answer_to("hello", 8)
            assert gateway.all_of(RelayHead)[0].status == 200
            assert gateway.all_of(BlocksStored)[0].digests == b"d" * 16
            asked = (await told(url))["requests"]
            assert asked[-1]["x_field"] == [1]
            assert [one["max_tokens"] for one in asked[:2]] == [16, 16]
            assert len(asked[1]["messages"][0]["content"].split()) == 32
            gateway.send(submission(b"b" * 16))
            rejected = await gateway.wait(Rejected)
            assert "takes text" in rejected.detail
            refused = relay("/v1/chat/completions", chat(x_refused=1))
            gateway.send(msgspec.structs.replace(refused, attempt=2))
            assert b"asked by Bearer [redacted]" in await body_of(gateway, 2)
            kill_launched(port)
            await gateway.wait(Fault)


@pytest.mark.parametrize(
    ("prefills", "given", "found"),
    [
        ("asked", {}, "continue_final_message"),
        ("last", {}, "continue_final_message"),
        ("last", {"refused_fields": ["continue_final_message"]}, "last_message"),
        ("", {}, None),
        ("asked", {"continues": "off"}, None),
        ("", {"continues": "prefix"}, "prefix"),
    ],
)
async def test_an_engine_that_goes_on_says_so(
    tmp_path: Path, prefills: str, given: dict[str, Any], found: str | None
) -> None:
    """Found out at its start: many servers ignore the fields, and begin a new answer."""
    with foreign_process(kind="openai", prefills=prefills) as engine:
        async with open_gateway_end() as gateway:
            with worker_process(tmp_path, gateway.address, url=engine.url, **KEYS, **given):
                facts = (await gateway.wait_ready()).engine
                assert facts is not None
                assert form_in(facts.capabilities) == found
                asked = (await told(engine.url))["requests"]
                tried = [one for one in asked if "numbers" in str(one["messages"])]
                assert bool(tried) == ("continues" not in given)


async def test_each_side_waits_for_the_other(tmp_path: Path) -> None:
    """No more of an upload than the window is under way, however much there is, and what comes is
    what was sent. Without credit a window of an answer comes, and the engine is not read further.
    """
    body = bytes(range(256)) * (12 * RELAY_WINDOW_BYTES // 256)
    with foreign_process(kind="openai", slow_upload=True) as engine:
        async with open_gateway_end() as gateway:
            with worker_process(tmp_path, gateway.address, url=engine.url, **KEYS):
                await gateway.wait_ready()
                await upload(gateway, body)
                answer = msgspec.json.decode(await body_of(gateway, 1))
                assert answer["digest"] == hashlib.sha256(body).hexdigest()
                assert max(m.num_taken for m in gateway.all_of(RelayTaken)) == len(body)
                speech = relay("/v1/audio/speech", chat())
                gateway.send(msgspec.structs.replace(speech, attempt=2))
                await download(gateway)


async def upload(gateway: GatewayEnd, body: bytes) -> None:
    """Send it within the window."""
    gateway.send(relay("/v1/audio/transcriptions", body))
    num_sent = RELAY_CHUNK_BYTES
    while num_sent < len(body):
        least = num_sent + RELAY_CHUNK_BYTES - RELAY_WINDOW_BYTES
        await gateway.wait(RelayTaken, partial(_has_taken, least))
        piece = body[num_sent : num_sent + RELAY_CHUNK_BYTES]
        gateway.send(RelayChunk(A, 1, num_sent, piece))
        num_sent += len(piece)


def _has_taken(least: int, message: RelayTaken) -> bool:
    return message.num_taken >= least


async def download(gateway: GatewayEnd) -> None:
    """First without credit, then with as much as is read."""
    await gateway.wait(RelayData, partial(_reaches, RELAY_WINDOW_BYTES - RELAY_CHUNK_BYTES))
    await trio.sleep(0.3)
    came = [m for m in gateway.all_of(RelayData) if m.attempt == 2]
    assert sum(len(m.data) for m in came) <= RELAY_WINDOW_BYTES
    num_read = 0
    while num_read < SPEECH_BYTES:
        num_read += RELAY_WINDOW_BYTES // 2
        gateway.send(RelayCredit(A, 2, num_read))
        await gateway.wait(RelayData, partial(_reaches, min(SPEECH_BYTES, num_read)))
    assert len(await body_of(gateway, 2)) == SPEECH_BYTES


def _reaches(least: int, message: RelayData) -> bool:
    return message.attempt == 2 and message.offset + len(message.data) >= least


@pytest.mark.slow
async def test_an_abort_and_an_engine_that_breaks(tmp_path: Path) -> None:
    """An abort closes the engine's stream; a cut one ends as broken, and the worker lives."""
    with foreign_process(kind="openai", token_ms=5, cut_after=40) as engine:
        async with open_gateway_end() as gateway:
            with worker_process(tmp_path, gateway.address, url=engine.url, **KEYS):
                await gateway.wait_ready()
                gateway.send(relay("/v1/chat/completions", chat(stream=True, max_tokens=400)))
                await gateway.wait(RelayData)
                gateway.send(Abort(A, 1))
                assert (await gateway.wait(RelayEnd)).error == "aborted"
                await wait_told(engine.url, lambda m: m["aborted"] == 1)
                again = relay("/v1/chat/completions", chat(stream=True, max_tokens=400))
                gateway.send(msgspec.structs.replace(again, attempt=2))
                end = await gateway.wait(RelayEnd, lambda m: m.attempt == 2)
                assert end.error == "broken"
                assert not gateway.all_of(Fault)
