"""The answers of the benchmark's own HTTP server: the bytes of an OpenAI-style upstream.

Owns those bytes. Must not know sockets.
"""

import json
from functools import cache

_HEAD = '{"id":"chatcmpl-upstream","object":"chat.completion.chunk","created":1,"model":"up",'


@cache
def stream_events(num_tokens: int) -> tuple[bytes, ...]:
    """The events of a stream in order: a role, a word per token, the end, usage, [DONE]. Each has a
    field that no gateway knows.
    """
    deltas = [
        '"delta":{"role":"assistant","content":""},"finish_reason":null',
        *(f'"delta":{{"content":" word{i}"}},"finish_reason":null' for i in range(num_tokens)),
        '"delta":{},"finish_reason":"stop"',
    ]
    chunks = [
        f'{_HEAD}"choices":[{{"index":0,{delta}}}],"x_upstream":{{"n":{number}}}}}'
        for number, delta in enumerate(deltas)
    ]
    usage = {"prompt_tokens": 200, "completion_tokens": num_tokens, "total_tokens": num_tokens}
    chunks.append(f'{_HEAD}"choices":[],"usage":{json.dumps(usage)}}}')
    return tuple(f"data: {chunk}\n\n".encode() for chunk in (*chunks, "[DONE]"))


def whole_body(num_tokens: int) -> bytes:
    """The body of an answer in one piece."""
    message = {"role": "assistant", "content": " word" * num_tokens}
    return json.dumps(
        {
            "id": "chatcmpl-upstream",
            "object": "chat.completion",
            "created": 1,
            "model": "up",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 200, "completion_tokens": num_tokens, "total_tokens": 210},
        }
    ).encode()
