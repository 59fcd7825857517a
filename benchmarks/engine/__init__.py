"""How fast the engine is, beside the floor that the card sets and beside its peer."""
