"""The built-in model: its data, its training, its files."""
