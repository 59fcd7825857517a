"""How well the built-in model answers, measured as a client sees it."""
