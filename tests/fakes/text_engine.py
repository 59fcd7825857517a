"""Somebody else's server that takes and gives text only: OpenAI's API, without token ids.

It has no `/health`, one model called `there`, and paths beside chats. What it says is a function of
its model and of the last message, so that two of them say the same. It breaks as `Settings` say.
"""

import hashlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from tests.fakes.foreign_engine import WINDOW, Handler

MODEL = "there"
SPEECH_BYTES = 3 * 2**20
PORTION = 2**16


def word(text: str, number: int) -> str:
    """The word of that number in the answer to `text`."""
    return hashlib.sha256(f"{text}/{number}".encode()).hexdigest()[:6] + " "


def answer_to(text: str, num: int) -> str:
    """The first words of the answer."""
    return "".join(word(text, number) for number in range(num))


class TextHandler(Handler):
    """One connection."""

    def _facts(self) -> None:
        model = {"id": MODEL, "object": "model", "owned_by": "x"}
        if self.settings.tells_window:
            model["max_model_len"] = WINDOW
        if self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [model]})
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:  # noqa: N802 - its base class calls it so
        state, settings = self.state, self.settings
        if self.path == "/stub":
            super().do_POST()
            return
        state.num_running += 1
        try:
            body = self._take_body()
            state.requests.append({"path": self.path, "num_bytes": len(body)})
            state.headers.append({name.lower(): value for name, value in self.headers.items()})
            if settings.fails:
                self._json(500, {"error": {"message": "CUDA out of memory", "code": 500}})
            elif settings.refuses:
                self._json(503, {"error": {"message": "overloaded", "code": 503}})
            elif settings.forbids:
                self._json(403, {"error": {"message": "not now"}})
            elif settings.key and not self._has_key():
                self._json(401, {"error": {"message": "no such key"}})
            else:
                self._answer(body)
        except (BrokenPipeError, ConnectionResetError):
            state.num_aborted += 1
            self.close_connection = True
        finally:
            state.num_running -= 1

    def _take_body(self) -> bytes:
        left, parts = int(self.headers["content-length"]), []
        while left:
            if self.settings.slow_upload:
                time.sleep(0.002)
            parts.append(self.rfile.read(min(left, PORTION)))
            left -= len(parts[-1])
        return b"".join(parts)

    def _answer(self, body: bytes) -> None:
        match self.path:
            case "/v1/chat/completions":
                self._chat(json.loads(body))
            case "/v1/completions":
                self._completion(json.loads(body))
            case "/v1/embeddings":
                model = json.loads(body)["model"]
                data = [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]
                usage = {"prompt_tokens": 3, "total_tokens": 3}
                answer = {"object": "list", "data": data, "model": model, "usage": usage}
                self._json(200, answer)
            case "/v1/audio/transcriptions":
                digest = hashlib.sha256(body).hexdigest()
                told = {"text": "heard", "num_bytes": len(body), "digest": digest}
                self._json(200, {**told, "is_there": b"\r\n\r\nthere\r\n" in body})
            case "/v1/audio/speech":
                self._speech()
            case _:
                self._json(404, {"detail": "Not Found"})

    def _chat(self, body: dict[str, Any]) -> None:
        self.state.requests[-1] |= body
        unknown = sorted({"cache_salt", "x_refused"} & body.keys())
        if body["model"] != MODEL:
            self._json(404, {"error": {"message": f"no model {body['model']}"}})
        elif unknown:
            asked_by = self.headers.get("authorization", "nobody")
            text = f"unknown field {unknown[0]}, asked by {asked_by}"
            self._in_pieces(422, {"error": {"message": text}})
        elif self.settings.die_at is not None and len(str(body)) > self.settings.die_at:
            print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.37 GiB")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        elif body.get("stream"):
            self._stream(self._chunks(body))
        else:
            self._json(200, self._whole(body))

    def _in_pieces(self, status: int, value: object) -> None:
        """Send JSON byte by byte, as a network may: a key that it names comes in pieces."""
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        for byte in data:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(0.001)

    def _said(self, body: dict[str, Any]) -> list[str]:
        """The words of the answer, or of the rest of the one that the last message begins."""
        last, num = body["messages"][-1], body.get("max_tokens") or 8
        goes_on = self.settings.prefills == "last" or body.get("continue_final_message") is True
        if last["role"] != "assistant" or not self.settings.prefills or not goes_on:
            return [word(str(last["content"]), number) for number in range(num)]
        begun, asked = last["content"], str(body["messages"][-2]["content"])
        whole = answer_to(asked, num + len(begun))
        assert whole.startswith(begun), begun
        return re.findall(r" ?\S+ ?", whole[len(begun) :])[:num]

    def _usage(self, num: int) -> dict[str, Any]:
        details = {"cached_tokens": self.settings.cached}
        return {
            "prompt_tokens": 11,
            "completion_tokens": num,
            "total_tokens": 11 + num,
            "prompt_tokens_details": details,
        }

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        words = self._said(body)
        num, content = len(words), "".join(words)
        message = {"role": "assistant", "content": content, "x_own": [1, 2]}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        head = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"]}
        time.sleep(self.settings.token_ms * num / 1e3)
        return {**head, "choices": [choice], "usage": self._usage(num)}

    def _chunks(self, body: dict[str, Any]) -> Iterator[Any]:
        words = self._said(body)
        num = len(words)
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        first = {"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}
        yield {**head, "choices": [first]}
        for number, said in enumerate(words):
            delta = {"content": said}
            choice = {"index": 0, "delta": delta, "finish_reason": None, "x_own": number}
            yield {**head, "choices": [choice]}
        last = {"index": 0, "delta": {}, "finish_reason": "length"}
        usage = self._usage(num)
        if self.settings.no_done:
            yield {**head, "choices": [last], "usage": usage}
            return
        yield {**head, "choices": [last]}
        if (body.get("stream_options") or {}).get("include_usage"):
            yield {**head, "choices": [], "usage": usage}
        yield "[DONE]"

    def _completion(self, body: dict[str, Any]) -> None:
        text, num = str(body["prompt"]), body.get("max_tokens") or 8
        head = {"id": "t", "object": "text_completion", "created": 1, "model": body["model"]}
        usage = self._usage(num)
        if not body.get("stream"):
            choice = {"index": 0, "text": answer_to(text, num), "finish_reason": "length"}
            self._json(200, {**head, "choices": [choice], "usage": usage})
            return
        choices = [{"index": 0, "text": word(text, number)} for number in range(num)]
        events: list[Any] = [{**head, "choices": [choice]} for choice in choices]
        self._stream(iter([*events, {**head, "choices": [], "usage": usage}, "[DONE]"]))

    def _speech(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "audio/mpeg")
        self.send_header("content-length", str(SPEECH_BYTES))
        self.end_headers()
        for start in range(0, SPEECH_BYTES, PORTION):
            self.wfile.write(start.to_bytes(4, "little") * (PORTION // 4))
            self.state.num_spoken = start + PORTION
