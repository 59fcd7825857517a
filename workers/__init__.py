"""A worker: a light supervisor process and the engine process that it owns."""
