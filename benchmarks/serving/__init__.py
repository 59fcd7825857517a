"""Time to ready, first token and tokens/s of the built-in model."""
