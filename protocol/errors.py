"""The errors that both sides of the wire share.

    HermaError                 every error that Herma raises on purpose
    ├── WireError              a frame is not a message of the protocol (the peer's fault)
    ├── LinkError              a link cannot carry a message now
    │   ├── PeerUnknown        no peer with that identity is connected
    │   └── LinkFull           the bounded queue of the link is full; the link is dropped
    ├── HttpError              an exchange of the HTTP client failed
    │   ├── ConnectError       no connection: refused, unresolved, no TLS; nothing was sent
    │   ├── ConnectTimeout     no connection was free or made in time; nothing was sent
    │   ├── KeptConnectionClosed  a connection that was kept alive ended before the response
    │   ├── LocalProtocolError the request cannot be sent as it is
    │   ├── WriteTimeout       the server did not take the request in time
    │   ├── ReadTimeout        the server was silent for too long
    │   ├── ReadError          the connection broke
    │   └── RemoteProtocolError  the server sent no complete HTTP/1.1 response
    └── ConfigError            the operator's files, addresses or keys are wrong

Owns the tree. Must not know HTTP statuses: `gateway/http/error_responses.py` maps those.
"""

from housekeeping.errors import ConfigError, HermaError


class WireError(HermaError):
    """A frame is truncated, oversize, of an unknown tag or of a wrong shape."""


class LinkError(HermaError):
    """A link cannot carry a message now."""


class PeerUnknown(LinkError):
    """No peer with that identity is connected."""


class LinkFull(LinkError):
    """The bounded queue of a link is full; the caller drops the link, never tokens."""


class HttpError(HermaError):
    """An exchange of the HTTP client failed."""


class ConnectError(HttpError):
    """There is no connection to the server, and nothing was sent."""


class ConnectTimeout(HttpError):
    """No connection was free, or established, in time; nothing was sent."""


class KeptConnectionClosed(HttpError):
    """A connection that was kept alive ended before the response: servers close idle connections,
    and may do so while a request is on its way. The request may succeed on a new connection.
    """


class LocalProtocolError(HttpError):
    """The request cannot be sent: a header contains a line break."""


class WriteTimeout(HttpError):
    """The server did not take the request in time."""


class ReadTimeout(HttpError):
    """The server was silent for too long."""


class ReadError(HttpError):
    """The connection broke while a response was read."""


class RemoteProtocolError(HttpError):
    """The server sent something other than HTTP/1.1, or ended a response early."""
