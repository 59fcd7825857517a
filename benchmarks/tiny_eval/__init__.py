"""The quality of the built-in model's answers, as a client sees them."""
