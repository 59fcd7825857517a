"""The body of POST /v1/chat/completions -> `ChatRequest`."""

from gateway.core.chat_request import ChatRequest


def parse_chat_request(body: bytes) -> ChatRequest:
    """The request in `body` (JSON). Raises `ApiError` 400 that names the field."""
    raise NotImplementedError
