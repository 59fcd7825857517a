"""The HTTP/1.1 server: connections, requests, responses.

Owns sockets, framing, deadlines and the end of a connection. Must not know routes.
"""

from gateway.http.server.exchange import write_batch
from gateway.http.server.serving import serve
from gateway.http.server.tls import Certificates
