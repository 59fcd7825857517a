"""Measurements of the running product; each prints the machine that it ran on."""
