"""The data that the built-in model learns from, made by our own code."""
