"""The app on a port, whoever serves it.

Owns the one door to serving HTTP. Must not know routes.
"""

from gateway.http.server.hypercorn import explain_bind_error, serve

__all__ = ["explain_bind_error", "serve"]
