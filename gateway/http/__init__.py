"""The HTTP edge: server, routes, streaming, metrics.

Owns how requests arrive and answers leave; the only importer of starlette and httptools. Must not
know how a turn runs.
"""

from gateway.http.edge import Edge, EdgeSettings, FleetGauges
from gateway.http.routes import edge_app
from gateway.http.server import Certificates, serve, write_batch
