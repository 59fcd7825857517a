"""Validation of the simulator: the same trace in virtual time and on real workers."""
