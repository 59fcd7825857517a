"""The networks that the engine runs, their shapes, weights and key-value caches."""
