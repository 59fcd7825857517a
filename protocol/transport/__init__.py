"""The only importer of zmq: trio sockets that carry opaque frames."""
