"""What is known about a request on each worker that could take it.

Owns the gathering of that knowledge for one decision: index, running prompts, conversations. Must
not know who may wait or what follows from a choice.
"""

from collections.abc import Mapping, Sequence

from gateway.routing.effects import RouteRequest
from gateway.routing.models import Model
from gateway.routing.placement_cost import Option, RouteDecision, Work, choose
from gateway.routing.prefix_index import PrefixIndex
from gateway.routing.worker_view import Worker
from protocol.ids import WorkerId

NOTHING_PROMISED: Mapping[WorkerId, float] = {}


class Candidates:
    """Decisions for single requests; changes nothing."""

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index

    def choose(
        self,
        model: Model,
        request: RouteRequest,
        session: str,
        workers: Sequence[Worker],
        expected_output: int,
        now: float,
        *,
        promised_s: Mapping[WorkerId, float] = NOTHING_PROMISED,
        num_ready: int = 1,
    ) -> RouteDecision:
        """The best of `workers`. `expected_output` is in tokens. `promised_s`: prefill on them that
        others wait for.
        """
        digests, index, conversations = request.digests, self._index, model.conversations
        held = index.match(digests)
        options: list[Option] = []
        for worker in workers:
            worker_id, expected = worker.worker_id, worker.expected_blocks(digests)
            stored = held.get(worker_id, 0)
            matched, coming = (expected, expected - stored) if expected > stored else (stored, 0)
            promised = promised_s.get(worker_id, 0.0) if promised_s else 0.0
            num_held = index.num_blocks(worker_id)
            options.append(Option(worker, matched, num_held, promised, coming))
        queue = model.queue.by_ticket
        work = Work(
            session,
            request.prompt_tokens,
            model.block_size or 0,
            expected_output,
            conversations.sharing(session, digests, now),
            conversations.home(session),
            request.prefer,
            (len(queue) - 1) / num_ready if queue else 0.0,
        )
        return choose(work, options, now)

    def least_uncached(self, model: Model, request: RouteRequest) -> int:
        """The prompt's tokens that no worker holds."""
        num_held = max(self._index.match(request.digests).values(), default=0)
        return max(1, request.prompt_tokens - num_held * (model.block_size or 0))
