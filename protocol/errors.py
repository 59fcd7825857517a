"""The errors that both sides of the wire share.

    HermaError                 everything that we raise on purpose
    ├── WireError              a frame is not a message of the protocol (the peer's fault)
    ├── LinkError              a link cannot carry a message now
    │   ├── PeerUnknown        nobody with that identity is connected
    │   └── LinkFull           the bounded queue of the link is full; the link is dropped
    └── ConfigError            the operator's files, addresses or keys are wrong

Owns the tree. Must not know HTTP statuses: `gateway/http/errors.py` maps those.
"""


class HermaError(Exception):
    """Base of every error that Herma raises on purpose; its text is for people."""


class WireError(HermaError):
    """A frame is truncated, oversize, of an unknown tag or of a wrong shape."""


class LinkError(HermaError):
    """A link cannot carry a message now."""


class PeerUnknown(LinkError):
    """No peer with that identity is connected."""


class LinkFull(LinkError):
    """The bounded queue of a link is full; the caller drops the link, never tokens."""


class ConfigError(HermaError):
    """A file, address or key that the operator gave is wrong; the text names it."""
