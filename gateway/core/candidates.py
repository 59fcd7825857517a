"""What is known about a request on each worker that could take it.

Owns the gathering of that knowledge for one decision: index, running prompts, conversations. Must
not know who may wait or what follows from a choice.
"""

from collections.abc import Mapping, Sequence

from gateway.core.effects import RouteRequest
from gateway.core.models import Model
from gateway.core.prefix_index import PrefixIndex
from gateway.core.route import Choice, Option, Work, choose
from gateway.core.worker_state import Worker
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
        now: float,
        *,
        promised_s: Mapping[WorkerId, float] = NOTHING_PROMISED,
        num_ready: int = 1,
    ) -> Choice:
        """The best of `workers`. `promised_s`: prefill on them that others wait for."""
        digests, index = request.digests, self._index
        held = index.match(digests)
        options = [
            Option(
                worker,
                max(held.get(worker.worker_id, 0), worker.expected_blocks(digests)),
                index.num_blocks(worker.worker_id),
                promised_s.get(worker.worker_id, 0.0),
            )
            for worker in workers
        ]
        work = Work(
            session=session,
            prompt_tokens=request.prompt_tokens,
            block_size=model.block_size or 0,
            expected_output=model.expected_output(request.max_tokens),
            sharing=model.conversations.sharing(session, digests, now),
            home=model.conversations.home(session),
            prefer=request.prefer,
            num_waiting=max(0, len(model.queue) - 1) / max(1, num_ready),
        )
        return choose(work, options, now)

    def least_uncached(self, model: Model, request: RouteRequest) -> int:
        """The prompt's tokens that no worker holds."""
        num_held = max(self._index.match(request.digests).values(), default=0)
        return max(1, request.prompt_tokens - num_held * (model.block_size or 0))
