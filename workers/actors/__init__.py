"""Trio shells of the supervisor process; no torch."""
