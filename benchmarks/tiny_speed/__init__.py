"""The built-in model's speed and its bars."""
