"""The engine process; the only place in workers that knows torch."""
