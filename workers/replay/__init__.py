"""Engines without a model: scripted answers, and synthetic tokens at an exact pace; no torch."""

from workers.replay.script import load_script
from workers.replay.scripted import PacedChannel, load_scripted
from workers.replay.synthetic import load_synthetic
