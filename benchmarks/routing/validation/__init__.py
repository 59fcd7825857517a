"""Is the simulator honest? The same trace in virtual time and on real workers."""
