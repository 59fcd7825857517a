"""Measurements of the running product. Each prints the machine that it ran on."""
