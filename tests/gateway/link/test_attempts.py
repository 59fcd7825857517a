"""The way from a worker's frames to those who wait for them: what fails there fails alone."""

from typing import Any

import pytest
import trio

from gateway.link.attempts import Attempt, Crashed
from gateway.routing.lease import Lease
from protocol.ids import ID_BYTES, RequestId
from protocol.messages import Abort, Submit
from protocol.sampling import SamplingParams
from protocol.tokens import pack_tokens
from tests.fakes.running_gateway import open_gateway
from tests.fakes.worker import PATIENCE_S, open_worker


def fail(_: object) -> Any:
    """A fault of ours."""
    raise ZeroDivisionError


@pytest.mark.parametrize("what", ["on_accepted", "on_tokens", "on_complete"])
async def test_a_fault_in_hearing_of_a_worker_ends_one_attempt_only(what: str) -> None:
    """A fault while a worker's frame is handled ends one attempt; its neighbours on the link, and
    later attempts, end as usual.
    """
    calls = {"on_accepted": lambda _: None, "on_tokens": lambda _: False} | {what: fail}
    async with open_gateway() as gateway, open_worker(gateway.address) as worker:
        await gateway.wait_state("ready")
        (peer,) = gateway.services.link._peers
        worker.pause_after = 1
        neighbour = gateway.start()
        await neighbour.wait_text()
        number = RequestId(bytes(ID_BYTES))
        attempt = Attempt(Lease(0, peer, 0, "test"), number, 1, expected=0, **calls)
        sampling = SamplingParams(max_tokens=4)
        submit = Submit(number, 1, "alpha", pack_tokens([1, 2]), b"", sampling, 0)
        gateway.services.link.submit(attempt, submit)
        await worker.wait(Submit, count=2)
        worker.resume()
        with trio.fail_after(PATIENCE_S):
            outcome = await attempt.wait()
            await neighbour.over.wait()
        assert isinstance(outcome, Crashed)
        assert isinstance(outcome.error, ZeroDivisionError)
        gateway.services.link.forget(attempt)
        await worker.wait(Abort)
        assert neighbour.reasons == (await gateway.ask()).reasons == ["stop"]
        assert gateway.services.counters.workers_lost == 0
