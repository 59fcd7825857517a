"""Trio shells that carry out what the core decides."""
