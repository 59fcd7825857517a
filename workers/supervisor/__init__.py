"""The supervisor process: links to gateways, one engine process, restarts, diagnosis; no torch."""
