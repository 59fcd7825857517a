"""The route preview: where a request would go now, for operators.

Owns the `RouteRequest` made of a request, for engines that take tokens and for text-level ones.
Must not place anything, nor know HTTP.
"""

from typing import Final

from gateway.api import ChatRequest, model_not_found, unavailable
from gateway.routing import ModelView, RoutePreview, RouteRequest
from gateway.turn.caller import Caller
from gateway.turn.preparation import prepare, readable
from gateway.turn.relay_job import chat_job
from gateway.turn.services import Services

_NO_TICKET: Final = 0


async def preview_route(services: Services, request: ChatRequest, caller: Caller) -> RoutePreview:
    """Where the request would go now. Raises the `ApiError` that the request itself would get, and
    503 while the model's tokenizer is unknown.
    """
    view = services.dispatcher.model(request.model)
    if view is None:
        raise model_not_found(request.model)
    found = services.dispatcher.preview(await _question(services, request, caller, view))
    if found is None:
        raise model_not_found(request.model)
    return found


async def _question(
    services: Services, request: ChatRequest, caller: Caller, view: ModelView
) -> RouteRequest:
    if view.relays:
        return chat_job(request, caller, view).route_request(_NO_TICKET, cloud=True)
    if not (view.fallback and view.cloud and caller.cloud):
        request = readable(services, request, view)
    job = await prepare(services, request, caller, view)
    if job is None:
        raise unavailable(f"No worker of {view.name} was ready yet: its prompts are unknown.", 5)
    return RouteRequest(
        ticket=_NO_TICKET,
        model=job.model,
        key=caller.key,
        weight=caller.weight,
        session=job.session,
        digests=job.digests,
        prompt_tokens=job.prompt_tokens,
        max_tokens=max(1, job.sampling.max_tokens),
        auxiliary=job.auxiliary,
        cloud=caller.cloud,
    )
