"""The routes of the gateway's app, walked."""

from collections.abc import Iterable

from starlette.routing import BaseRoute, Mount, Route

from gateway.http.routes import Methods


def endpoints_of(routes: Iterable[BaseRoute], below: str = "") -> dict[str, Methods]:
    """The endpoint of each path, also of those within a mount. A path that is routed twice leads to
    the same handlers.
    """
    found: dict[str, Methods] = {}
    for route in routes:
        if isinstance(route, Mount):
            inner = endpoints_of(route.routes, below + route.path)
        else:
            assert isinstance(route, Route), route
            assert isinstance(route.endpoint, Methods), route
            inner = {below + route.path_format: route.endpoint}
        for path, endpoint in inner.items():
            assert found.setdefault(path, endpoint).handlers == endpoint.handlers, path
    return found
