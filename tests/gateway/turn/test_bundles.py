"""Several messages of a worker in one frame: each counts as if it had come alone."""

from gateway.turn.services import Services
from protocol.messages import Accepted, Bundle, Finished, FromWorker, Submit, TokenItem, Tokens
from protocol.tokens import pack_tokens
from protocol.wire import encode
from tests.fakes.running_gateway import open_gateway, wait_until
from tests.fakes.worker import FakeWorker, open_worker


def bundle(*parts: FromWorker | bytes) -> Bundle:
    return Bundle(tuple(part if isinstance(part, bytes) else encode(part) for part in parts))


def tokens(submit: Submit, offset: int, *ids: int) -> Tokens:
    item = TokenItem(submit.request_id, submit.attempt, offset, pack_tokens(ids))
    return Tokens(offset, (item,))


def finished(submit: Submit, num_tokens: int) -> Finished:
    return Finished(submit.request_id, submit.attempt, "length", 1, 0, num_tokens)


def quiet_worker() -> FakeWorker:
    """A worker that accepts what it is sent; the test sends its other messages."""
    worker = FakeWorker()
    worker.pause_after = 0
    return worker


async def test_a_whole_answer_in_one_frame() -> None:
    """Acceptance, tokens and end are taken in order, and cost one frame."""
    async with open_gateway() as gateway, open_worker(gateway.address, quiet_worker()) as worker:
        await gateway.wait_state("ready")
        asked = gateway.start(max_tokens=3)
        submit = await worker.wait(Submit)
        num_frames = gateway.services.counters.frames_received
        one, two, three = worker.script[:3]
        answer = (
            Accepted(submit.request_id, 1, 7),
            tokens(submit, 0, one),
            tokens(submit, 1, two, three),
            finished(submit, 3),
        )
        worker.say(bundle(*answer))
        await wait_until(lambda: bool(asked.reasons))
        assert asked.reasons == ["length"]
        assert asked.text
        assert asked.usage.completion_tokens == 3
        assert asked.started.cached_tokens == 7
        assert gateway.services.counters.frames_received - num_frames < len(answer)
        assert no_harm(gateway.services)


async def test_garbage_in_a_frame_takes_no_other_message_along() -> None:
    """Garbage in a frame is counted, as is a bundle within a bundle, and the messages around it are
    taken.
    """
    async with open_gateway() as gateway, open_worker(gateway.address, quiet_worker()) as worker:
        await gateway.wait_state("ready")
        asked = gateway.start(max_tokens=2)
        submit = await worker.wait(Submit)
        one, two = worker.script[:2]
        worker.say(
            bundle(
                b"",
                tokens(submit, 0, one),
                b"\x92\x7f",
                bundle(Accepted(bytes(16), 1, 7)),
                tokens(submit, 1, two),
                finished(submit, 2),
            )
        )
        await wait_until(lambda: bool(asked.reasons))
        assert asked.reasons == ["length"]
        assert gateway.services.counters.frames_garbage == 3
        assert gateway.services.counters.workers_lost == 0


async def test_a_gap_in_a_frame_ends_the_link_there() -> None:
    """Tokens are missing: what follows in the same frame is a stranger's, until it registers."""
    async with open_gateway() as gateway, open_worker(gateway.address, quiet_worker()) as worker:
        await gateway.wait_state("ready")
        asked = gateway.start(max_tokens=3)
        submit = await worker.wait(Submit)
        worker.say(bundle(tokens(submit, 1, worker.script[1]), finished(submit, 2)))
        counters = gateway.services.counters
        await wait_until(lambda: counters.frames_from_strangers == 1)
        assert (counters.offset_gaps, counters.workers_lost) == (1, 1)
        assert not asked.reasons
        worker.pause_after = None
        worker.register()
        await wait_until(lambda: bool(asked.reasons))
        assert asked.reasons == ["length"]


def no_harm(services: Services) -> bool:
    """Whether nothing of what came was odd."""
    counters = services.counters
    return not (counters.frames_garbage or counters.items_stale or counters.workers_lost)
