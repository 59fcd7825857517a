"""One request from question to usage: preparation, sequence runs, retries, providers.

Owns the tasks of a request and their end. Must not know HTTP or sockets.
"""

from gateway.turn.caller import Caller, session_of_headers
from gateway.turn.model_texts import KnownText, beside_the_loop

__all__ = [
    "Caller",
    "KnownText",
    "beside_the_loop",
    "session_of_headers",
]
