"""Somebody else's engine: a process that speaks the HTTP API of vLLM, SGLang or llama-server.

Written from their documentation and source. The next token is a pure function of all ids before it,
so a resumed answer must go on as the undisturbed one would have. `Settings` break it in the ways in
which such servers break; `POST /stub` changes them while it runs, `GET /stub` tells what came.
"""

import json
import os
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import xxhash

from protocol.tokens import pack_tokens
from workers.model_dir import builtin_dir, read_eos_ids
from workers.replay.synthetic import read_vocabulary

_DIR = builtin_dir("builtin:herma-tiny")
_WORDS = read_vocabulary(_DIR)
EOS = read_eos_ids(_DIR)[0]
WINDOW = 2048
SLOTS = 4


SLEEPS = ("/sleep?level=1", "/release_memory_occupation")
WAKES = ("/wake_up", "/resume_memory_occupation")


@dataclass
class Settings:
    """`answer`: ids that follow any prompt, then the end of sequence; else words without an end.

    `die_after`, `cut_after`, `half_after`: after so many tokens of an answer the process kills
    itself, the connection ends, the connection ends within an event. `fails`: generating answers
    500. `refuses`: it answers 503. `forbids`: 403. `ignores_ids`: it answers in text only.
    `mixes_prompt`: SGLang's old mistake. `partial`: SGLang sends new ids only. `skips`:
    llama-server's streams leave out every third token. `enforced`: what any grammar lets through.
    `slow_upload`: it takes its time with bodies. `no_done`: no `[DONE]` ends its streams. `start_s`
    passes before it is healthy, with a line each 0.1 s. `hold_after`: a stream stops behind so many
    events until this is None. `tells_window`: its list of models has their window.
    """

    kind: str = "vllm"
    tells_window: bool = True
    key: str | None = None
    token_ms: float = 1.0
    answer: list[int] = field(default_factory=list)
    enforced: list[int] = field(default_factory=list)
    cached: int = 0
    die_after: int | None = None
    cut_after: int | None = None
    half_after: int | None = None
    hold_after: int | None = None
    fails: bool = False
    refuses: bool = False
    forbids: bool = False
    dead: bool = False
    ignores_ids: bool = False
    mixes_prompt: bool = False
    partial: bool = False
    skips: bool = False
    version: str = "0.26.0"
    start_s: float = 0.0
    silent: bool = False
    slow_upload: bool = False
    no_done: bool = False
    prefills: str = ""
    """How a server of text goes on with a last message of the assistant: always (`last`), where
    `continue_final_message` asks for it (`asked`), or never.
    """
    can_sleep: bool = False
    """It was started so that it can: vLLM with its development routes and its sleep mode, SGLang
    with its memory saver and a backup of the weights.
    """
    sleep_fault: str = ""
    """How it fails to fall asleep: `status` (500), `memory` (200, and nothing is free), `says`
    (200, and it says that it is awake), `hangs`, `dies`.
    """
    wake_fault: str = ""
    """How it fails to wake: `status`, `says`, `hangs`, `dies`, `weights` (other tokens since)."""
    die_at: int | None = None
    """Dies at a prompt of more ids than this: out of memory at the first large one."""


def next_id(ids: list[int], answer: list[int]) -> int:
    """The token after `ids`."""
    if not answer:
        return _WORDS.at(xxhash.xxh3_64_intdigest(pack_tokens(ids)), len(ids))
    done = next(n for n in range(len(answer), -1, -1) if n == 0 or ids[-n:] == answer[:n])
    return answer[done] if done < len(answer) else EOS


class State:
    """Shared by the threads."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started_at = time.monotonic()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.num_running = 0
        self.num_aborted = 0
        self.num_spoken = 0
        self.is_asleep = False
        self.has_lost_weights = False
        self._counting = threading.Lock()

    def count(self, *, running: int = 0, aborted: int = 0) -> None:
        """Add to what all threads count: `+=` alone loses a count between two threads."""
        with self._counting:
            self.num_running += running
            self.num_aborted += aborted

    @property
    def is_up(self) -> bool:
        return time.monotonic() - self.started_at >= self.settings.start_s


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def address_string(self) -> str:
        return "client"  # a Unix socket has no host

    @property
    def settings(self) -> Settings:
        return self.state.settings

    def do_GET(self) -> None:
        if self.path == "/stub":
            state = self.state
            told = {
                "requests": state.requests,
                "headers": state.headers,
                "aborted": state.num_aborted,
                "running": state.num_running,
                "spoken": state.num_spoken,
            }
            self._json(200, told)
        elif self.path == "/is_sleeping" and self._sleeps_as("vllm"):
            self._json(200, {"is_sleeping": self.state.is_asleep})
        elif self.settings.dead or not self.state.is_up:
            self._json(503, {"error": {"code": 503, "message": "Loading model"}})
        elif self.path != "/health" and self.settings.key and not self._has_key():
            self._json(401, {"error": "Unauthorized"})
        else:
            self._facts()

    def _has_key(self) -> bool:
        return self.headers.get("authorization") == f"Bearer {self.settings.key}"

    def _facts(self) -> None:
        kind, answers = self.settings.kind, {"/health": {"status": "ok"}}
        version = {"version": self.settings.version}
        model = {"id": "there", "object": "model"}
        if self.settings.tells_window:
            model["max_model_len"] = WINDOW
        if kind == "vllm":
            model |= {"owned_by": "vllm", "root": str(_DIR)}
            answers |= {"/v1/models": {"data": [model]}, "/version": version}
        if kind == "sglang":
            model |= {"owned_by": "sglang", "root": "there"}
            answers["/get_model_info"] = {"model_path": str(_DIR), "is_generation": True}
            server = {**version, "max_total_num_tokens": 8192, "max_running_requests": SLOTS}
            server["enable_memory_saver"] = self.settings.can_sleep
            server["enable_weights_cpu_backup"] = self.settings.can_sleep
            answers |= {"/v1/models": {"data": [model]}, "/get_server_info": server}
        if kind == "llama-cpp":
            slot = {"default_generation_settings": {"n_ctx": WINDOW}, "total_slots": SLOTS}
            listed = {"id": "there", "object": "model", "owned_by": "llamacpp"}
            answers |= {"/props": slot, "/v1/models": {"data": [listed]}}
        if self.path == "/metrics" and kind == "vllm":
            text = (
                'vllm:cache_config_info{block_size="16",num_gpu_blocks="512"} 1.0\n'
                f'vllm:num_requests_running{{model_name="there"}} {self.state.num_running}.0\n'
                'vllm:num_requests_waiting{model_name="there"} 3.0\n'
            )
            self._send(200, text.encode(), "text/plain")
        elif self.path in answers:
            self._json(200, answers[self.path])
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        if self.path in SLEEPS or self.path in WAKES:
            self._move(is_asleep=self.path in SLEEPS)
            return
        if self.path == "/stub":
            for name, value in body.items():
                setattr(self.settings, name, value)
            self._json(200, {})
            return
        self.state.requests.append({"path": self.path, **body})
        self.state.headers.append({name.lower(): value for name, value in self.headers.items()})
        ids = body.get("input_ids") or body.get("prompt")
        if self.settings.die_at is not None and len(ids) > self.settings.die_at:
            print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.37 GiB")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.settings.fails:
            self._json(500, {"error": {"message": "CUDA out of memory", "code": 500}})
        elif self.settings.refuses or self.state.is_asleep:
            self._json(503, {"error": {"message": "overloaded", "code": 503}})
        elif self.settings.key and not self._has_key():
            self._json(401, {"error": "Unauthorized"})
        else:
            self._generate(body, list(ids))

    def _sleeps_as(self, kind: str) -> bool:
        return self.settings.can_sleep and self.settings.kind == kind

    def _move(self, *, is_asleep: bool) -> None:
        """Fall asleep or wake, on the card of the test where there is one."""
        fault = self.settings.sleep_fault if is_asleep else self.settings.wake_fault
        self.state.requests.append({"path": self.path})
        if fault == "hangs":
            threading.Event().wait()
        if fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if not self.settings.can_sleep or fault == "status":
            self._json(404 if fault != "status" else 500, {"detail": "no"})
            return
        if fault != "says":
            self.state.is_asleep = is_asleep
        self.state.has_lost_weights = fault == "weights"
        if (card := os.environ.get("HERMA_TEST_CARD")) and fault != "memory":
            mark = Path(card, f"asleep-{os.getppid()}")
            mark.touch() if is_asleep else mark.unlink(missing_ok=True)
        self._send(200, b"", "text/plain")

    def _generate(self, body: dict[str, Any], ids: list[int]) -> None:
        self.state.count(running=1)
        try:
            # A model without its weights says something, and not what it said before.
            known = [id_ + 1 for id_ in ids] if self.state.has_lost_weights else ids
            events = EVENTS[self.settings.kind](self.settings, body, known)
            if body["stream"]:
                self._stream(events)
            else:
                *_, last = events
                self._json(200, last)
        except (BrokenPipeError, ConnectionResetError):
            self.state.count(aborted=1)
            self.close_connection = True
        finally:
            self.state.count(running=-1)

    def _stream(self, events: Iterator[Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        settings = self.settings
        due_at = time.monotonic()
        for number, event in enumerate(events):
            data = event if isinstance(event, str) else json.dumps(event)
            if number == settings.half_after:
                self._chunk(f"data: {data}"[:-5].encode())
            if number in {settings.half_after, settings.cut_after}:
                self.close_connection = True
                return
            if number == settings.die_after:
                os.kill(os.getpid(), signal.SIGKILL)
            while settings.hold_after is not None and number >= settings.hold_after:
                time.sleep(0.01)
            self._chunk(f"data: {data}\n\n".encode())
            # On a grid, so that late wake-ups do not add up.
            due_at = max(due_at, time.monotonic() - settings.token_ms / 1e3)
            due_at += settings.token_ms / 1e3
            time.sleep(max(0.0, due_at - time.monotonic()))
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def outputs(
    settings: Settings, ids: list[int], most: int, stops: set[int], *, enforced: bool = False
) -> Iterator[int]:
    """New ids, up to one of `stops`; those that a grammar lets through if one is enforced."""
    ids = list(ids)
    if enforced:
        yield from [*settings.enforced, EOS][:most]
        return
    for _ in range(most):
        token_id = next_id(ids, settings.answer)
        ids.append(token_id)
        yield token_id
        if token_id in stops:
            return


def vllm_events(settings: Settings, body: dict[str, Any], ids: list[int]) -> Iterator[Any]:
    """`/v1/completions`: ids in `token_ids`, usage in a chunk of its own, `[DONE]`."""
    eos = set() if body["ignore_eos"] else {EOS}
    stops = {*body["stop_token_ids"], *eos}
    count, most = 0, body["max_tokens"]
    for token_id in outputs(settings, ids, most, stops, enforced="structured_outputs" in body):
        count += 1
        choice: dict[str, Any] = {"index": 0, "text": "x", "logprobs": None}
        if body.get("return_token_ids") and not settings.ignores_ids:
            choice["token_ids"] = [token_id]
            if count == 1:
                choice["prompt_token_ids"] = ids
        if (tops := body.get("logprobs")) is not None:
            table = {f"token_id:{token_id}": -0.5, "token_id:7": -1.5, "token_id:8": -2.5}
            choice["logprobs"] = {
                "tokens": [f"token_id:{token_id}"],
                "token_logprobs": [-0.5],
                "top_logprobs": [dict(list(table.items())[: tops + 1])],
                "text_offset": [0],
            }
        choice["finish_reason"] = choice["stop_reason"] = None
        if token_id in stops:
            choice["finish_reason"] = "stop"
            choice["stop_reason"] = None if token_id == EOS and eos else token_id
        elif count == most:
            choice["finish_reason"] = "length"
        yield {"id": "cmpl-1", "object": "text_completion", "choices": [choice]}
    usage: dict[str, Any] = {"prompt_tokens": len(ids), "completion_tokens": count}
    usage["prompt_tokens_details"] = {"cached_tokens": settings.cached}
    yield {"id": "cmpl-1", "object": "text_completion", "choices": [], "usage": usage}
    yield "[DONE]"


def sglang_events(settings: Settings, body: dict[str, Any], ids: list[int]) -> Iterator[Any]:
    """`/generate`: all ids so far in each event, or the new ones."""
    params = body["sampling_params"]
    stops = {*params["stop_token_ids"], *(() if params["ignore_eos"] else (EOS,))}
    is_ruled = bool({"json_schema", "regex", "ebnf"} & set(params))
    most, made, logprobs, tops = params["max_new_tokens"], list[int](), list[Any](), list[Any]()
    for token_id in outputs(settings, ids, most, stops, enforced=is_ruled):
        made.append(token_id)
        logprobs.append([-0.5, token_id, None])
        tops.append([[-0.5, token_id, None], [-1.5, 7, None]])
        meta: dict[str, Any] = {
            "id": "1",
            "finish_reason": None,
            "prompt_tokens": len(ids),
            "completion_tokens": len(made),
            "cached_tokens": settings.cached,
        }
        if token_id in stops:
            meta["finish_reason"] = {"type": "stop", "matched": token_id}
        elif len(made) == most:
            meta["finish_reason"] = {"type": "length", "length": most}
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = list(logprobs)
            meta["output_top_logprobs"] = list(tops)
        told = made[-1:] if settings.partial else list(made)
        prefix = ids[-2:] if settings.mixes_prompt else []
        yield {"text": "x", "output_ids": prefix + told, "meta_info": meta}
    yield "[DONE]"


def llama_cpp_events(settings: Settings, body: dict[str, Any], ids: list[int]) -> Iterator[Any]:
    """`/completion`: one token per event, and the end in one without tokens."""
    stops = set() if body["ignore_eos"] else {EOS}
    most, made, streamed = body["n_predict"], list[int](), body["stream"]
    if body.get("return_progress"):
        progress = {"total": len(ids), "cache": settings.cached, "processed": len(ids)}
        # Builds of October 2026 put a token 0 into it.
        event = {"content": "", "tokens": [0], "tokens_predicted": 0, "tokens_evaluated": len(ids)}
        yield event | {"stop": False, "prompt_progress": progress}
    stop_type = "limit"
    is_ruled = bool({"json_schema", "grammar"} & set(body))
    for token_id in outputs(settings, ids, most, stops, enforced=is_ruled):
        made.append(token_id)
        stop_type = "eos" if token_id in stops else "limit"
        is_left_out = settings.skips and (len(ids) + len(made)) % 3 == 0 and token_id not in stops
        if is_left_out and len(made) < most:
            continue  # in the middle of a character
        event: dict[str, Any] = {
            "index": 0,
            "content": "" if token_id in stops else " x",
            "tokens": [] if settings.ignores_ids else [token_id],
            "stop": False,
            "tokens_predicted": len(made),
            "tokens_evaluated": len(ids),
        }
        if body.get("n_probs"):
            best = [{"id": token_id, "logprob": -0.5}, {"id": 7, "logprob": -1.5}]
            prob = {"id": token_id, "logprob": -0.5, "top_logprobs": best[: body["n_probs"]]}
            event["completion_probabilities"] = [prob]
        yield event
    yield {
        "content": "" if streamed else "x",
        "tokens": [] if streamed or settings.ignores_ids else made,
        "stop": True,
        "stop_type": stop_type,
        "tokens_predicted": len(made),
        "tokens_evaluated": len(ids),
        "timings": {"cache_n": settings.cached, "prompt_n": len(ids)},
    }


EVENTS = {"vllm": vllm_events, "sglang": sglang_events, "llama-cpp": llama_cpp_events}


class _UnixServer(ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)


def open_server(address: str, state: State) -> ThreadingHTTPServer:
    """Bound to a port, or a path."""
    base: type[Handler] = Handler
    if state.settings.kind == "openai":
        from tests.fakes.text_engine import TextHandler as base  # noqa: N813
    handler = type("Bound", (base,), {"state": state})
    if address.startswith("/"):
        Path(address).unlink(missing_ok=True)
        return _UnixServer(address, handler)  # type: ignore[arg-type]
    return ThreadingHTTPServer(("127.0.0.1", int(address)), handler)


def main() -> None:
    address, settings = sys.argv[1], Settings(**json.loads(sys.argv[2]))
    state = State(settings)
    server = open_server(address, state)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("loading", json.dumps(asdict(settings)), flush=True)
    while not settings.silent and not state.is_up:
        part = (time.monotonic() - state.started_at) / settings.start_s
        print(f"Loading safetensors checkpoint shards: {part:.0%} Completed", flush=True)
        time.sleep(0.1)
    print("Application startup complete.", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
