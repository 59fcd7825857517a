"""The networks that the engine runs, one file each."""
