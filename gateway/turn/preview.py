"""What would happen to a chat request, without doing it.

Owns the way from a request to the question for the dispatcher. Must not know HTTP.
"""

from gateway.api import ChatRequest, model_not_found, unavailable
from gateway.routing import RoutePreview, RouteRequest
from gateway.turn.caller import Caller
from gateway.turn.preparation import prepare
from gateway.turn.services import Services

NO_TICKET = 0


async def preview_route(services: Services, request: ChatRequest, caller: Caller) -> RoutePreview:
    """Raises `ApiError` as the request itself would, and while the model's texts are unknown."""
    dispatcher = services.dispatcher
    view = dispatcher.model(request.model)
    if view is None:
        raise model_not_found(request.model)
    job = await prepare(services, request, caller, view)
    if job is None:
        raise unavailable(f"No worker of {view.name} was ready yet: its prompts are unknown.", 5)
    found = dispatcher.preview(
        RouteRequest(
            ticket=NO_TICKET,
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
    )
    if found is None:
        raise model_not_found(request.model)
    return found
