"""Engines of other people: what they hold, told in our words."""
