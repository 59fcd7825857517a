"""Mutated requests over real HTTP, answered by a worker: never a 500, never a hang.

300 of each kind in `make test`, 3,000 in `make fuzz`; what parsing alone can get wrong is in
`tests/gateway/api/test_request_fuzz.py`.
"""

import json
import os
from random import Random

import pytest
import trio

from tests.fakes.mutations import mutated, spliced
from tests.fakes.served import connected
from tests.fakes.whole_gateway import whole_gateway
from tests.fakes.worker import FakeWorker
from tests.gateway.api.test_request_fuzz import CHATS, TEXTS

EXAMPLES = 3_000 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 60
CALL = '<think>Hm.</think>So:<tool_call>{"name": "terminal", "arguments": {"command": "ls"'
PATIENCE_S = 1200.0
ONE_S = 20.0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
async def test_a_mutated_request_is_answered_or_refused(path: str) -> None:
    """200 or 400 (404 for a model's name that was changed), in JSON or as a stream that ends."""
    bodies = TEXTS if path == "/v1/completions" else CHATS
    worker = FakeWorker(text=CALL, end=False, tokens_per_frame=8)
    statuses = set()
    async with whole_gateway(worker, PATIENCE_S) as whole, connected(whole.url) as client:
        for seed in range(EXAMPLES):
            random = Random(seed)
            body = random.choice(bodies)
            data = mutated(body, random) if seed % 3 else json.dumps(spliced(body, random)).encode()
            with trio.fail_after(ONE_S):
                reply = await client.ask("POST", path, data, content_length=str(len(data)))
            assert reply.status in {200, 400, 404}, (seed, data, reply)
            if reply.headers["content-type"].startswith("text/event-stream"):
                assert reply.body.endswith(b"data: [DONE]\n\n"), (seed, data)
            statuses.add(reply.status)
        assert not worker.running
    assert {200, 400} <= statuses
