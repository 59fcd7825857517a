"""What the built-in model's speed is held against."""
